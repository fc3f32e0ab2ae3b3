// SPDX-License-Identifier: Apache-2.0
// Models written as GGUF files: what is written is read back bit for bit, with all metadata; matrices become the types
// that are named; and what cannot be written is refused by name.
#include <doctest/doctest.h>
#include <graft/io/gguf/folder_metadata.h>
#include <graft/io/gguf/save_model.h>
#include <graft/io/gguf/tokenizer.h>
#include <graft/io/gguf/writer.h>
#include <graft/io/load_model.h>
#include <graft/io/tokenizer/tokenizer_file.h>
#include <graft/model/on_cpu.h>

#include <fstream>

#include "../support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;
const std::string golden = GRAFT_GOLDEN_DIR;
const char* const golden_files[] = {"/gguf/llama_mixed/model.gguf", "/gguf/qwen3_tied/model.gguf"};

io::gguf mapped(const std::string& file) {
  auto read = io::map_gguf(file);
  REQUIRE_MESSAGE(read, read.message());
  return std::move(*read);
}
io::hf::model_files opened(const std::string& file) {
  auto read = io::open_gguf_model(file);
  REQUIRE_MESSAGE(read, read.message());
  return std::move(*read);
}
std::size_t bytes_of(const view& v) {
  return static_cast<std::size_t>(v.quant != nullptr ? quantized_bytes(v.quant->format, v.size[0], v.size[1])
                                                     : v.count() * bits_of(v.type) / 8);
}
std::vector<float> floats_of(const view& v) {
  std::vector<float> all(static_cast<std::size_t>(v.count()));
  cpu::convert(v, all.data());
  return all;
}
std::string type_of(const view& v) { return v.quant != nullptr ? name_of(v.quant->format) : name_of(v.type); }

}  // namespace

TEST_CASE("gguf writer: a model that is written as it is stored has the same tensors and metadata") {
  for (const char* name : golden_files) {
    INFO(name);
    const temp_folder folder;
    const std::string from = golden + name, to = folder.path / "copy.gguf";
    const io::hf::model_files model = opened(from);
    const status saved = io::save_gguf(to, model.weights, from);
    REQUIRE_MESSAGE(saved, std::string(saved.message()));
    const io::gguf before = mapped(from), after = mapped(to);
    REQUIRE(after.tensors.size() == before.tensors.size());
    for (const auto& [tensor, v] : before.tensors) {
      INFO(tensor);
      const auto at = after.tensors.find(tensor);
      REQUIRE(at != after.tensors.end());
      CHECK(type_of(at->second) == type_of(v));
      REQUIRE(bytes_of(at->second) == bytes_of(v));
      CHECK(std::memcmp(at->second.data, v.data, bytes_of(v)) == 0);
    }
    CHECK(after.metadata.size() == before.metadata.size());
    for (const auto& [key, v] : before.metadata) {
      INFO(key);
      const io::gguf_value* const copy = after.find_value(key);
      REQUIRE(copy != nullptr);
      CHECK(copy->type == v.type);
      CHECK(copy->stored == v.stored);
    }
  }
}

TEST_CASE("gguf writer: matrices become any type, rows that are no whole blocks one of smaller blocks") {
  struct expectation {
    const char *as, *wide, *narrow;  // of rows of 256 and of 32 elements
    std::uint32_t file_type;
    double error;  // of the largest number
  };
  const expectation all[] = {
      {"f32", "f32", "f32", 0, 0},        {"f16", "f16", "f16", 1, 1e-3},    {"bf16", "bf16", "bf16", 32, 4e-3},
      {"q8_0", "q8_0", "q8_0", 7, 5e-3},  {"q4_0", "q4_0", "q4_0", 2, 0.13}, {"q4_1", "q4_1", "q4_1", 3, 0.1},
      {"q5_0", "q5_0", "q5_0", 8, 0.07},  {"q5_1", "q5_1", "q5_1", 9, 0.05}, {"q4_k", "q4_k", "q5_0", 14, 0.15},
      {"q5_k", "q5_k", "q5_1", 16, 0.08}, {"q6_k", "q6_k", "q8_0", 18, 0.06}};
  for (const char* name : golden_files)
    for (const expectation& e : all) {
      INFO(name, " as ", e.as);
      const temp_folder folder;
      const std::string from = golden + name, to = folder.path / "copy.gguf";
      const io::hf::model_files model = opened(from);
      const io::gguf_matrix_type* const type = io::find_gguf_matrix_type(e.as);
      REQUIRE(type != nullptr);
      const status saved = io::save_gguf(to, model.weights, from, type);
      REQUIRE_MESSAGE(saved, std::string(saved.message()));
      const io::gguf file = mapped(to);
      CHECK(file.find_value("general.file_type")->whole == e.file_type);
      const io::hf::model_files copy = opened(to);
      for (const auto& [tensor, v] : model.weights.tensors) {
        INFO(tensor);
        const view& w = copy.weights.tensors.at(tensor);
        const bool four_to_six_bits = std::string(e.as).starts_with("q") && std::string(e.as) != "q8_0",
                   head = tensor == "lm_head.weight" || (model.config.tied && tensor == "model.embed_tokens.weight");
        const std::string expected = v.rank == 1                ? "f32"
                                     : head && four_to_six_bits ? "q6_k"
                                     : v.size[1] % 256 == 0     ? e.wide
                                                                : e.narrow;
        CHECK(type_of(w) == expected);
        const std::vector<float> a = floats_of(v), b = floats_of(w);
        float most = 0, off = 0;
        for (std::size_t i = 0; i < a.size(); ++i)
          most = std::max(most, std::abs(a[i])), off = std::max(off, std::abs(a[i] - b[i]));
        CHECK(off <= e.error * most);
      }
    }
  CHECK(io::find_gguf_matrix_type("q3_k") == nullptr);
  CHECK(io::find_gguf_matrix_type("") == nullptr);
}

TEST_CASE("gguf writer: mixtures store the layers in more bits that llama.cpp does") {
  // The layers of Llama 2 7B in Q4_K_M, as llama.cpp's quantizer prints them.
  constexpr int in_q6_k[] = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};
  const std::vector<float> numbers(512);
  const view wide = view_of(numbers.data(), 2, 256), narrow = view_of(numbers.data(), 16, 32);
  const auto type = [](const char* as, const std::string& tensor, const view& v, io::gguf_model_facts of) {
    const io::gguf_matrix_type* const named = io::find_gguf_matrix_type(as);
    REQUIRE(named != nullptr);
    const io::gguf_matrix_type* const found = io::gguf_type_for(*named, tensor, v, of);
    return std::string(found != nullptr ? found->name : "as it is");
  };
  const io::gguf_model_facts llama7b{.layers = 32}, llama70b{.layers = 80, .shares_values = true};
  for (int l = 0; l < 32; ++l) {
    INFO(l);
    const std::string layer = "blk." + std::to_string(l) + ".";
    const bool more = std::find(std::begin(in_q6_k), std::end(in_q6_k), l) != std::end(in_q6_k);
    for (const char* tensor : {"attn_v.weight", "ffn_down.weight", "attn_qkv.weight"}) {
      CHECK(type("q4_k_m", layer + tensor, wide, llama7b) == (more ? "q6_k" : "q4_k_m"));
      CHECK(type("q5_k_m", layer + tensor, wide, llama7b) == (more ? "q6_k" : "q5_k_m"));
      CHECK(type("q4_k_s", layer + tensor, wide, llama7b) == (l < 4 ? "q5_k" : "q4_k_s"));
      CHECK(type("q4_k_m", layer + tensor, narrow, llama7b) == (more ? "q8_0" : "q5_0"));
      CHECK(type("q4_k", layer + tensor, wide, llama7b) == "q4_k");
    }
    for (const char* tensor : {"attn_q.weight", "attn_k.weight", "attn_output.weight", "ffn_up.weight"})
      CHECK(type("q4_k_m", layer + tensor, wide, llama7b) == "q4_k_m");
    CHECK(type("q4_k_m", layer + "attn_norm.weight", view_of(numbers.data(), 256), llama7b) == "as it is");
  }
  CHECK(type("q4_k_m", "blk.11.attn_v.weight", wide, llama70b) == "q5_k");
  CHECK(type("q4_k_m", "blk.11.ffn_down.weight", wide, llama70b) == "q4_k_m");
  CHECK(type("q4_k_m", "blk.9.attn_v.weight", wide, llama70b) == "q6_k");
  const io::gguf_model_facts mixtral{.layers = 32, .experts = 8}, qwen2_moe{.layers = 32, .experts = 60};
  for (const char* down : {"ffn_down_exps.weight", "ffn_down_shexp.weight"}) {
    CHECK(type("q4_k_m", std::string("blk.0.") + down, wide, qwen2_moe) == "q6_k");
    CHECK(type("q4_k_m", std::string("blk.4.") + down, wide, qwen2_moe) == "q4_k_m");
    CHECK(type("q4_k_s", std::string("blk.0.") + down, wide, qwen2_moe) == "q5_k");
  }
  CHECK(type("q4_k_m", "blk.0.ffn_up_exps.weight", wide, mixtral) == "q4_k_m");
  for (const char* as : {"q4_k_s", "q4_k_m", "q5_k_m"})
    for (const char* tensor : {"blk.11.attn_v.weight", "blk.11.attn_k.weight"}) {
      CHECK(type(as, tensor, wide, mixtral) == "q8_0");
      CHECK(type(as, tensor, wide, qwen2_moe) == as);
    }
  CHECK(type("q4_k_m", "blk.11.attn_output.weight", wide, mixtral) == "q5_k");
  CHECK(type("q5_k_m", "blk.11.attn_output.weight", wide, mixtral) == "q5_k_m");
  CHECK(type("q4_k_m", "blk.11.attn_output.weight", wide, qwen2_moe) == "q4_k_m");
  CHECK(type("q4_k_m", "output.weight", wide, llama7b) == "q6_k");
  CHECK(type("q4_k_m", "token_embd.weight", wide, llama7b) == "q4_k_m");
  CHECK(type("q4_k_m", "token_embd.weight", wide, {.tied = true, .layers = 32}) == "q6_k");
}

namespace {
// A folder with the model of a golden case, and a tokenizer that has a token for each of its rows, which are bytes.
// Settings that no real model of these families has, and GGUF files cannot say, become the usual ones.
void make_folder(const std::filesystem::path& to, const std::string& model, bool as_it_is = false) {
  constexpr std::pair<const char*, const char*> usual[] = {
      {"\"query_pre_attn_scalar\": 20", "\"query_pre_attn_scalar\": 12"},
      {"\"full_attention\",\n    \"sliding_attention\",\n    \"sliding_attention\"",
       "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\""},
      {"1,\n    0,\n    1,\n    0", "1, 1, 1, 0"},
      {"\"partial_rotary_factor\": 0.75", "\"partial_rotary_factor\": 0.67"}};
  std::filesystem::create_directories(to);
  const std::string base = golden + "/" + model + "/base/";
  const auto config = io::hf::read_config(base);
  REQUIRE_MESSAGE(config, config.message());
  std::filesystem::copy_file(base + "model.safetensors", to / "model.safetensors");
  const auto stated = io::read_file(base + "config.json");
  REQUIRE(stated);
  std::string settings(io::as_chars(*stated));
  for (const auto& [unusual, with] : usual)
    if (const std::size_t at = settings.find(unusual); !as_it_is && at != settings.npos)
      settings.replace(at, std::string_view(unusual).size(), with);
  std::ofstream(to / "config.json") << settings;
  const auto bytes = io::read_file(GRAFT_GOLDEN_DIR "/../programs/bytes_tokenizer.json");
  REQUIRE(bytes);
  const auto top = io::parse_json(io::as_chars(*bytes), "tokenizer.json");
  REQUIRE(top);
  const io::json& vocabulary = *top->find("model")->find("vocab");
  std::string shorter;
  for (std::size_t i = 0; i < vocabulary.keys.size(); ++i)
    if (vocabulary.items[i].whole < static_cast<std::uint64_t>(config->vocabulary))
      shorter += (shorter.empty() ? "" : ", ") + io::json_text(vocabulary.keys[i]) + ": " +
                 std::to_string(vocabulary.items[i].whole);
  std::ofstream(to / "tokenizer.json")
      << R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},)"
      << R"( "post_processor": null, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {)" << shorter
      << R"(}, "merges": []}})";
  std::ofstream(to / "tokenizer_config.json") << R"({"eos_token": "A", "chat_template": "{{ messages[0].content }}"})";
}
std::vector<float> logits_of(const std::string& file, const std::string& adapter = {}) {
  auto model = io::load_model<engine>(file);
  REQUIRE_MESSAGE(model, model.message());
  if (!adapter.empty()) {
    auto adapters = io::load_adapters(adapter, *model);
    REQUIRE_MESSAGE(adapters, std::string(adapters.message()));
    REQUIRE(model->set_adapters(std::move(adapters->set)));
  }
  const std::vector<std::int64_t> ids{3, 9, 1, 20, 27, 12, 5, 30, 11, 2, 31, 18};
  const sequence_chunk rows[] = {{ids, 0, 0}};
  std::vector<float> all(ids.size() * static_cast<std::size_t>(model->config().vocabulary));
  const status computed = model->logits(rows, all);
  REQUIRE_MESSAGE(computed, std::string(computed.message()));
  return all;
}
float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float off = 0;
  for (std::size_t i = 0; i < a.size(); ++i) off = std::max(off, std::abs(a[i] - b[i]));
  return off;
}
}  // namespace

TEST_CASE("gguf writer: a model of a folder becomes a file that means the same") {
  for (const char* name : {"models/llama",
                           "models/llama_rope_linear",
                           "models/llama_rope_llama3",
                           "models/llama_rope_yarn",
                           "models/llama_tied_bias",
                           "models/mistral",
                           "models/qwen2",
                           "models/qwen3",
                           "models/gemma",
                           "models/gemma2",
                           "models/gemma3",
                           "models/granite",
                           "models/olmo2",
                           "models/phi3",
                           "models/smollm3",
                           "models/gpt2",
                           "models/phi3_longrope",
                           "experts/models/mixtral",
                           "experts/models/qwen2_moe",
                           "experts/models/qwen3_moe",
                           "experts/models/gpt_oss",
                           "checkpoints/models/gpt_oss_mxfp4"}) {
    INFO(std::string(name));
    const temp_folder folder;
    const std::string from = folder.path / "from", to = folder.path / "model.gguf", again = folder.path / "again.gguf";
    make_folder(from, name);
    const auto model = io::open_model(from);
    REQUIRE_MESSAGE(model, model.message());
    const bool is_mxfp4 = std::string_view(name).ends_with("mxfp4");
    const status saved = io::save_gguf(to, model->weights, from, is_mxfp4 ? nullptr : io::find_gguf_matrix_type("f32"));
    REQUIRE_MESSAGE(saved, std::string(saved.message()));
    const io::hf::model_files copy = opened(to);
    CHECK(copy.weights.tensors.size() == model->weights.tensors.size());
    for (const auto& [tensor, v] : model->weights.tensors) {
      INFO(tensor);
      REQUIRE(copy.weights.tensors.contains(tensor));
      const view& w = copy.weights.tensors.at(tensor);
      REQUIRE(w.rank == v.rank);
      const bool transposed = v.rank == 3
                                  ? experts_in_out(model->config)
                                  : v.rank == 2 && stored_in_out(model->config) && is_in_layers(model->config, tensor);
      CHECK(largest_difference(floats_of(transposed ? v.transposed() : v), floats_of(w)) <=
            1.2e-7F);  // Gemma's norms are written plus 1
    }
    const std::vector<float> expected = logits_of(from), read = logits_of(to);
    float most = 0;
    for (const float v : expected) most = std::max(most, std::abs(v));
    CHECK(largest_difference(expected, read) <= 1e-5F * most);
    const io::gguf file = mapped(to);
    CHECK(file.find_value("general.type")->word == "model");
    CHECK(file.find_value("tokenizer.ggml.pre")->word == "gpt-2");
    CHECK(file.find_value("tokenizer.chat_template")->word == "{{ messages[0].content }}");
    CHECK(file.find_value("tokenizer.ggml.tokens")->whole == copy.config.vocabulary);
    // A file of that file has the same tensors and settings.
    const status repeated = io::save_gguf(again, copy.weights, to);
    REQUIRE_MESSAGE(repeated, repeated.message());
    const io::gguf second = mapped(again);
    CHECK(second.metadata.size() == file.metadata.size());
    REQUIRE(second.tensors.size() == file.tensors.size());
    for (const auto& [tensor, v] : file.tensors) {
      INFO(tensor);
      const view& w = second.tensors.at(tensor);
      CHECK(std::equal(v.size, v.size + 4, w.size));
      CHECK(floats_of(v) == floats_of(w));
    }
  }
}

TEST_CASE("gguf writer: adapters on experts of a folder are those of its file") {
  for (const std::string name : {"mixtral", "qwen2_moe", "gpt_oss"}) {
    INFO(name);
    const temp_folder folder;
    const std::string from = folder.path / "from", to = folder.path / "model.gguf", as_gguf = folder.path / "a.gguf",
                      peft = golden + "/experts/models/" + name + "/lora_experts/adapter_init";
    make_folder(from, "experts/models/" + name);
    const auto model = io::open_model(from);
    REQUIRE_MESSAGE(model, model.message());
    REQUIRE(io::save_gguf(to, model->weights, from, io::find_gguf_matrix_type("f32")));
    const auto adapters = io::read_adapters(peft, model->config, model->weights);
    REQUIRE_MESSAGE(adapters, adapters.message());
    REQUIRE(io::save_adapters(as_gguf, *adapters, model->config));
    const std::vector<float> expected = logits_of(from, peft), bare = logits_of(from);
    float most = 0;
    for (const float v : expected) most = std::max(most, std::abs(v));
    CHECK(largest_difference(bare, expected) > 1e-4F * most);
    for (const std::string& adapter : {peft, as_gguf}) {
      CHECK(largest_difference(logits_of(to, adapter), expected) <= 1e-5F * most);
      CHECK(largest_difference(logits_of(from, adapter), expected) <= 1e-5F * most);
    }
  }
}

TEST_CASE("gguf writer: windows of some layers are a list, and what files cannot say is refused") {
  const temp_folder folder;
  const std::string from = folder.path / "from", to = folder.path / "model.gguf";
  make_folder(from, "models/smollm3");
  const auto model = io::open_model(from);
  REQUIRE_MESSAGE(model, model.message());
  const status saved = io::save_gguf(to, model->weights, from);
  REQUIRE_MESSAGE(saved, std::string(saved.message()));
  const io::gguf file = mapped(to);
  const io::gguf_value* const pattern = file.find_value("smollm3.attention.sliding_window_pattern");
  REQUIRE(pattern != nullptr);
  CHECK(pattern->word == std::string_view("\0\1\0\1", 4));
  CHECK(file.find_value("smollm3.attention.sliding_window")->whole == 6);

  const std::string without = folder.path / "without", other = folder.path / "other.gguf";
  make_folder(without, "experts/models/qwen3_moe");
  const auto read = io::read_file(without + "/config.json");
  REQUIRE(read);
  std::string config(io::as_chars(*read));
  const std::string normalized = "\"norm_topk_prob\": true";
  REQUIRE(config.find(normalized) != config.npos);
  config.replace(config.find(normalized), normalized.size(), "\"norm_topk_prob\": false");
  std::ofstream(without + "/config.json") << config;
  const auto experts = io::open_model(without);
  REQUIRE_MESSAGE(experts, experts.message());
  const std::string said = io::save_gguf(other, experts->weights, without).message();
  CHECK(said.find("norm_topk_prob of this model cannot be said in a GGUF file") != std::string::npos);
  CHECK(!std::filesystem::exists(other));

  // 9 elements of a head have frequencies, and ggml rotates whole pairs.
  const std::string phi3 = folder.path / "phi3";
  make_folder(phi3, "models/phi3", true);
  const auto rotated = io::open_model(phi3);
  REQUIRE_MESSAGE(rotated, rotated.message());
  CHECK(
      std::string(io::save_gguf(other, rotated->weights, phi3).message()).find("the rotary positions of this model") !=
      std::string::npos);

  const std::string opt = folder.path / "opt";
  make_folder(opt, "models/opt");
  const auto learned = io::open_model(opt);
  REQUIRE_MESSAGE(learned, learned.message());
  CHECK(std::string(io::save_gguf(other, learned->weights, opt).message()) ==
        opt +
            ": a model of the type 'opt' is not written as a GGUF file; convert the folder with llama.cpp's "
            "convert_hf_to_gguf.py");
}

TEST_CASE("gguf writer: a tokenizer of a folder encodes as it did, or is refused") {
  const auto page = io::read_file(GRAFT_GOLDEN_DIR "/../../docs/concepts.md");
  REQUIRE(page);
  const std::string text(io::as_chars(*page));
  auto config = io::hf::read_config(golden + "/models/llama/base");
  REQUIRE(config);
  config->vocabulary = 600, config->tokens = {};  // those of the model are other tokens here
  const std::vector<float> rows(600 * 2);
  for (const char* name : {"gpt2", "llama3", "qwen2", "gpt4o", "absent_bytes", "llama2", "mistral", "gemma", "deepseek",
                           "gpt2_space", "whitespace", "splits", "inverted", "metaspace_unk", "t5", "unigram_bytes"}) {
    INFO(std::string(name));
    const bool expected =
        std::string_view("gpt2 llama3 qwen2 gpt4o absent_bytes llama2 mistral gemma ").find(std::string(name) + ' ') !=
        std::string::npos;
    const temp_folder folder;
    const std::string from = golden + "/tokenizers/" + name, to = folder.path / "tokenizer.gguf";
    io::gguf_writer writer;
    io::gguf_rope_tensors divisors;
    const auto tokenizer = io::hf::read_tokenizer(from);
    REQUIRE_MESSAGE(tokenizer, tokenizer.message());
    const auto plain = tokenizer->encode("a", false), whole = tokenizer->encode("a", true);
    REQUIRE((plain && whole));
    config->tokens.bos_token.reset();
    if (whole->size() > plain->size()) config->tokens.bos_token = static_cast<int>(whole->front());
    const status s = io::put_folder_metadata(writer, from, *config, divisors);
    if (!s) {
      CHECK(std::string(s.message()).find("convert_hf_to_gguf.py") != std::string::npos);
      if (expected) FAIL_CHECK(std::string(s.message()));
      continue;
    }
    REQUIRE(writer.add("token_embd.weight", view_of(rows.data(), 600, 2)));
    REQUIRE(writer.save(to));
    const auto written = io::tokenizer_of(mapped(to)), original = io::hf::read_tokenizer(from);
    REQUIRE_MESSAGE(written, written.message());
    REQUIRE_MESSAGE(original, original.message());
    const auto a = original->encode(text), b = written->encode(text);
    REQUIRE_MESSAGE(a, a.message());
    REQUIRE_MESSAGE(b, b.message());
    const bool same_text = written->decode(*b) == original->decode(*a);  // not printed where it differs
    CHECK(*a == *b);
    CHECK(same_text);
  }
}

TEST_CASE("gguf writer: a merged model computes what the adapted one does") {
  const temp_folder folder;
  const std::string from = golden + "/gguf/llama_mixed/model.gguf", to = folder.path / "merged.gguf";
  auto model = io::load_model<engine>(from);
  REQUIRE_MESSAGE(model, model.message());
  auto adapters = io::load_adapters(golden + "/gguf/llama_mixed/adapter", *model);
  REQUIRE_MESSAGE(adapters, adapters.message());
  REQUIRE(model->set_adapters(std::move(adapters->set)));
  const auto merged = model->merged_weights(model->active(), merged_format::f32);
  REQUIRE_MESSAGE(merged, merged.message());
  const status saved = io::save_gguf(to, *merged, from, io::find_gguf_matrix_type("f32"));
  REQUIRE_MESSAGE(saved, std::string(saved.message()));
  auto read = io::load_model<engine>(to);
  REQUIRE_MESSAGE(read, read.message());
  const std::vector<std::int64_t> ids{3, 9, 1, 40};
  const sequence_chunk rows[] = {{ids, 0, 0}};
  std::vector<float> a(ids.size() * static_cast<std::size_t>(model->config().vocabulary)), b = a, base = a;
  REQUIRE(model->logits(rows, a));
  REQUIRE(read->logits(rows, b));
  REQUIRE(model->set_adapters({}));
  REQUIRE(model->logits(rows, base));
  float most = 0, off = 0, changed = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i])), off = std::max(off, std::abs(a[i] - b[i]));
    changed = std::max(changed, std::abs(a[i] - base[i]));
  }
  CHECK(off < 1e-4F * most);
  CHECK(changed > 1e-3F * most);
}

TEST_CASE("gguf writer: what cannot be written is refused by name, and no file is left") {
  const temp_folder folder;
  const std::string from = golden + "/gguf/llama_mixed/model.gguf", to = folder.path / "copy.gguf";
  io::hf::model_files model = opened(from);
  const auto refused = [&](const std::string& source, const char* as) {
    const status s = io::save_gguf(to, model.weights, source, as != nullptr ? io::find_gguf_matrix_type(as) : nullptr);
    CHECK(!s);
    CHECK(folder.files() == 0);
    return std::string(s.message());
  };
  CHECK(refused(folder.path / "nothing.gguf", nullptr).find("there is no such file") != std::string::npos);
  const std::string norm = "model.norm.weight";
  const view kept = model.weights.tensors.at(norm);
  model.weights.tensors["model.strange.weight"] = kept;
  CHECK(refused(from, nullptr).find("'model.strange.weight' has no name in GGUF files of llama models") !=
        std::string::npos);
  model.weights.tensors.erase("model.strange.weight");
  const std::vector<double> doubles(static_cast<std::size_t>(kept.count()), 1);
  model.weights.tensors[norm] = view_of(doubles.data(), kept.count());
  CHECK(refused(from, nullptr).find("'output_norm.weight' is stored as f64, which is no type of GGUF files") !=
        std::string::npos);
  model.weights.tensors[norm] = kept;
  view& query = model.weights.tensors.at("model.layers.0.self_attn.q_proj.weight");
  std::vector<float> numbers = floats_of(query);
  numbers[70] = 1e9F;
  query = view_of(numbers.data(), query.size[0], query.size[1]);
  for (const char* as : {"f16", "q4_0", "q4_k", "q6_k"})
    CHECK(refused(from, as).find(std::string("'blk.0.attn_q.weight' has a number that ") + as + " cannot hold") !=
          std::string::npos);
  numbers[70] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refused(from, "q8_0").find("cannot hold") != std::string::npos);
}
