// SPDX-License-Identifier: Apache-2.0
// GGUF files, written here from the golden models of Hugging Face as ggml's converter writes them, give the logits of
// those models; and files that are wrong are refused with a sentence that names what is.
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/io/gguf/model.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>

#include <fstream>

#include "../support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;
const std::filesystem::path golden = std::filesystem::path(GRAFT_GOLDEN_DIR) / "models";

class gguf_writer {
 public:
  template <class Number> gguf_writer& fact(const std::string& name, std::uint32_t type, Number v) {
    return text(facts_, name), put(facts_, type), put(facts_, v), ++fact_count_, *this;
  }
  gguf_writer& fact(const std::string& name, std::string_view v) {
    return text(facts_, name), put(facts_, std::uint32_t{8}), text(facts_, v), ++fact_count_, *this;
  }
  void tensor(const std::string& name, const view& v, std::uint32_t type, std::span<const std::byte> bytes) {
    text(tensors_, name), put(tensors_, static_cast<std::uint32_t>(v.rank));
    for (int k = v.rank - 1; k >= 0; --k) put(tensors_, static_cast<std::uint64_t>(v.size[k]));
    put(tensors_, type), put(tensors_, static_cast<std::uint64_t>(data_.size()));
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    data_.resize((data_.size() + 31) / 32 * 32), ++tensor_count_;
  }
  std::string whole() const {
    std::string out = "GGUF";
    put(out, std::uint32_t{3}), put(out, tensor_count_), put(out, fact_count_);
    out += facts_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  template <class Number> static void put(std::string& to, Number v) {
    to.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  static void text(std::string& to, std::string_view s) { put(to, static_cast<std::uint64_t>(s.size())), to += s; }
  std::string facts_, tensors_, data_;
  std::uint64_t fact_count_ = 0, tensor_count_ = 0;
};

// Puts the two rows of a RoPE pair next to each other, as ggml has the rows of Q and K of a Llama.
std::vector<float> interleaved(const std::vector<float>& v, long long rows, int heads) {
  const auto width = v.size() / static_cast<std::size_t>(rows), size = static_cast<std::size_t>(rows / heads);
  std::vector<float> out(v.size());
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    const std::size_t in_head = r % size, to = r - in_head + in_head % (size / 2) * 2 + in_head / (size / 2);
    std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(r * width), width,
                out.begin() + static_cast<std::ptrdiff_t>(to * width));
  }
  return out;
}
// Families whose norms are next to other layers than in Llama, and Phi-3, have other names.
std::string gguf_name(std::string name, bool has_post_norms = false) {
  static const std::pair<const char*, const char*> post_norms[] = {{"post_attention_layernorm", "post_attention_norm"},
                                                                   {"pre_feedforward_layernorm", "ffn_norm"},
                                                                   {"post_feedforward_layernorm", "post_ffw_norm"}};
  static const std::pair<const char*, const char*> parts[] = {{"model.embed_tokens", "token_embd"},
                                                              {"model.norm", "output_norm"},
                                                              {"lm_head", "output"},
                                                              {"model.layers", "blk"},
                                                              {"input_layernorm", "attn_norm"},
                                                              {"post_attention_layernorm", "ffn_norm"},
                                                              {"self_attn.q_proj", "attn_q"},
                                                              {"self_attn.k_proj", "attn_k"},
                                                              {"self_attn.v_proj", "attn_v"},
                                                              {"self_attn.o_proj", "attn_output"},
                                                              {"self_attn.q_norm", "attn_q_norm"},
                                                              {"self_attn.k_norm", "attn_k_norm"},
                                                              {"self_attn.qkv_proj", "attn_qkv"},
                                                              {"mlp.gate_up_proj", "ffn_up"},
                                                              {"mlp.gate_proj", "ffn_gate"},
                                                              {"mlp.up_proj", "ffn_up"},
                                                              {"mlp.down_proj", "ffn_down"},
                                                              {"transformer.wte", "token_embd"},
                                                              {"transformer.wpe", "position_embd"},
                                                              {"transformer.ln_f", "output_norm"},
                                                              {"transformer.h", "blk"},
                                                              {"ln_1", "attn_norm"},
                                                              {"ln_2", "ffn_norm"},
                                                              {"attn.c_attn", "attn_qkv"},
                                                              {"attn.c_proj", "attn_output"},
                                                              {"mlp.c_fc", "ffn_up"},
                                                              {"mlp.c_proj", "ffn_down"}};
  const auto replace = [&](const char* from, const char* to) {
    if (const std::size_t at = name.find(from); at != name.npos) name.replace(at, std::strlen(from), to);
  };
  for (const auto& [from, to] : post_norms)
    if (has_post_norms) replace(from, to);
  for (const auto& [from, to] : parts) replace(from, to);
  return name;
}

struct written {
  std::string file;
  std::vector<float> expected;
};
const std::vector<std::int64_t> ids{1, 5, 7, 90, 33, 2};
std::vector<float> logits_of(causal_lm<engine>& model, const std::vector<std::int64_t>& tokens = ids) {
  std::vector<float> out(tokens.size() * static_cast<std::size_t>(model.config().vocabulary));
  const std::vector<sequence_chunk> runs{{tokens}};
  const status s = model.logits(runs, out);
  REQUIRE_MESSAGE(s, s.message());
  return out;
}
std::vector<float> transposed(const std::vector<float>& v, long long rows) {
  const auto r = static_cast<std::size_t>(rows), c = v.size() / r;
  std::vector<float> out(v.size());
  for (std::size_t i = 0; i < r; ++i)
    for (std::size_t j = 0; j < c; ++j) out[j * r + i] = v[i * c + j];
  return out;
}
void write_rope(gguf_writer& to, const std::string& family, const rope_settings& r) {
  const std::string prefix = family + ".rope.";
  to.fact(prefix + "freq_base", 6, static_cast<float>(r.theta));
  if (r.kind == rope_kind::plain || r.kind == rope_kind::longrope) return;
  to.fact(prefix + "scaling.type", r.kind == rope_kind::yarn ? "yarn" : "linear");
  to.fact(prefix + "scaling.factor", 6, static_cast<float>(r.factor));
  if (r.kind == rope_kind::yarn)
    to.fact(prefix + "scaling.original_context_length", 4, static_cast<std::uint32_t>(r.original_positions));
}
// Changes a configuration to one that a file can state, as llama.cpp computes it, and writes the facts of its family.
void write_facts_of_family(gguf_writer& to, const std::string& family, model_config& c) {
  const auto real = [&](const char* name, double v) { to.fact(family + "." + name, 6, static_cast<float>(v)); };
  const auto whole = [&](const char* name, int v) { to.fact(family + "." + name, 4, static_cast<std::uint32_t>(v)); };
  if (family.starts_with("gemma") && family != "gemma") {
    c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    const int window = 5, period = family == "gemma2" ? 2 : 3;
    for (int l = 0; l < c.layers; ++l) c.window[static_cast<std::size_t>(l)] = (l + 1) % period != 0 ? window : 0;
    whole("attention.sliding_window", window);
    if (family == "gemma2") real("attn_logit_softcapping", c.attention_soft_cap);
    if (family == "gemma3") whole("attention.sliding_window_pattern", period);
    if (family == "gemma3") real("rope.freq_base_swa", c.sliding_rope->theta);
    real("final_logit_softcapping", c.logit_soft_cap);
    return;
  }
  if (family == "granite") {
    real("attention.scale", c.attention_scale), real("embedding_scale", c.embedding_multiplier);
    real("residual_scale", c.residual_multiplier), real("logit_scale", c.logits_scaling);
  }
  if (family == "smollm3") {
    c.window.assign(c.window.size(), 0);
    for (std::size_t l = 0; l < c.no_rope.size(); ++l) c.no_rope[l] = (l + 1) % 4 == 0;
  }
  if (family == "phi3") {
    c.rope.partial = 0.5;
    whole("rope.dimension_count", c.head_dim / 2);
    whole("rope.scaling.original_context_length", static_cast<int>(c.rope.original_positions));
    if (c.rope.kind == rope_kind::longrope) real("rope.scaling.attn_factor", c.rope.attention_factor.emplace(1.5));
    whole("attention.sliding_window", c.window[0]);
    return;
  }
  if (c.window[0] > 0) whole("attention.sliding_window", c.window[0]);
}
// A golden model as a file whose matrices take turns among some types, and the logits of the numbers in it.
written write_as(const std::string& model_folder, const std::vector<quant_format>& formats,
                 const std::vector<float>& divisors = {}) {
  auto model = io::hf::load_model<engine>(golden / model_folder / "base");
  REQUIRE_MESSAGE(model, model.message());
  model_config c = model->config();
  const bool gpt2 = c.family == &families::gpt2;
  const std::string family = c.family == &families::mistral  ? "llama"  // as converters name them
                             : c.family == &families::gemma3 ? "gemma3"
                                                             : c.family->name;
  const bool has_post_norms = family == "gemma2" || family == "gemma3" || family == "olmo2";
  const auto fact = [&](const char* name) { return family + "." + name; };
  gguf_writer to;
  to.fact("general.architecture", family).fact(fact("block_count"), 4, static_cast<std::uint32_t>(c.layers));
  to.fact(fact("embedding_length"), 4, static_cast<std::uint32_t>(c.hidden_size));
  to.fact(fact("feed_forward_length"), 4, static_cast<std::uint32_t>(c.intermediate_size));
  to.fact(fact("attention.head_count"), 4, static_cast<std::uint32_t>(c.heads));
  to.fact(fact("context_length"), 4, static_cast<std::uint32_t>(c.positions));
  to.fact(fact(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), 6,
          static_cast<float>(c.norm_eps));
  if (!gpt2) {
    to.fact(fact("attention.head_count_kv"), 4, static_cast<std::uint32_t>(c.kv_heads));
    to.fact(fact("attention.key_length"), 4, static_cast<std::uint32_t>(c.head_dim));
    write_rope(to, family, c.rope);
  }
  write_facts_of_family(to, family, c);
  model_weights numbers = model->weights();
  std::vector<std::vector<float>> memory;
  memory.reserve(numbers.tensors.size());
  std::size_t turn = 0;
  for (auto& [name, v] : numbers.tensors) {
    std::vector<float> values(static_cast<std::size_t>(v.count()));
    cpu::read(v, 0, v.count(), values.data());
    const bool transposes = gpt2 && v.rank == 2 && name.find(".h.") != name.npos;  // converters write GPT-2's [out, in]
    view file_view = v;
    if (transposes) values = transposed(values, v.size[0]), std::swap(file_view.size[0], file_view.size[1]);
    const quant_format format = v.rank == 2 && !formats.empty() ? formats[turn++ % formats.size()] : quant_format{};
    // Rows that are no whole number of blocks stay floats.
    const bool is_quantized =
        format.type == dtype::ggml && cpu::quantize(values.data(), file_view.size[0], file_view.size[1], format);
    auto quantized = [&](const std::vector<float>& from) {
      auto made = cpu::quantize(from.data(), file_view.size[0], file_view.size[1], format);
      REQUIRE_MESSAGE(made, made.message());
      return std::move(*made);
    };
    if (is_quantized) cpu::convert(quantized(values).as_view(), values.data());
    const bool query = name.find("q_proj") != name.npos, key = name.find("k_proj") != name.npos;
    std::vector<float> stored = (family == "llama" || family == "granite" || family == "smollm3") && (query || key)
                                    ? interleaved(values, v.size[0], query ? c.heads : c.kv_heads)
                                    : values;
    if (family.starts_with("gemma") && name.ends_with("norm.weight"))  // converters add 1
      for (std::size_t i = 0; i < values.size(); ++i) stored[i] = values[i] + 1, values[i] = stored[i] - 1;
    if (is_quantized) {
      const cpu::quantized_weight made = quantized(stored);
      to.tensor(gguf_name(name, has_post_norms), file_view, static_cast<std::uint32_t>(format.block_type),
                std::as_bytes(std::span(made.data)));
    } else {
      to.tensor(gguf_name(name, has_post_norms), file_view, 0, std::as_bytes(std::span(stored)));
    }
    memory.push_back(transposes ? transposed(values, file_view.size[0]) : std::move(values));
    v.data = memory.back().data(), v.type = dtype::f32;
  }
  if (c.rope.kind == rope_kind::longrope)
    for (const auto& [name, of] : {std::pair{"rope_factors_short.weight", &c.rope.divisors},
                                   {"rope_factors_long.weight", &c.rope.long_divisors}})
      to.tensor(name, view_of(of->data(), 1, static_cast<long long>(of->size())), 0, std::as_bytes(std::span(*of)));
  if (!divisors.empty()) {
    const view v = view_of(divisors.data(), 1, static_cast<long long>(divisors.size()));
    to.tensor("rope_freqs.weight", v, 0, std::as_bytes(std::span(divisors)));
    const bool fit = 2 * divisors.size() == static_cast<std::size_t>(c.head_dim);
    model_config other = c;
    other.rope.divisors = divisors;
    CHECK(bool(causal_lm<engine>::make(other, numbers, {})) == fit);
    if (fit) c = other;
  }
  auto plain = causal_lm<engine>::make(c, numbers, {});
  REQUIRE_MESSAGE(plain, plain.message());
  return {to.whole(), logits_of(*plain)};
}
// The logits of the file are those that it was written with.
void check_logits(const written& w) {
  const temp_folder folder;
  const std::string file = folder.path / "model.gguf";
  std::ofstream(file, std::ios::binary) << w.file;
  auto model = io::load_gguf<engine>(file);
  REQUIRE_MESSAGE(model, model.message());
  const std::vector<float> found = logits_of(*model);
  double most = 0, size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    most = std::max(most, std::abs(double(found[i]) - double(w.expected[i])));
    size = std::max(size, std::abs(double(w.expected[i])));
  }
  CHECK(most < 2e-5 * size);
}
std::vector<quant_format> formats_to_write() {
  std::vector<quant_format> all;
  quant_formats::ggml_formats::for_each([&](auto f) {
    if (can_quantize(f.format()) && f.block == 32) all.push_back(f.format());
  });
  return all;
}
std::string refused(const std::string& bytes) {
  const auto parsed = io::parse_gguf(io::make_owned_bytes(bytes_of(bytes)), "model.gguf");
  if (!parsed) return parsed.message();
  const auto config = io::config_of(*parsed);
  if (!config) return config.message();
  const auto weights = io::weights_of(*parsed, *config);
  return weights ? "" : weights.message();
}

}  // namespace

TEST_CASE("gguf: a file gives the logits of the model it was made of") {
  for (const std::string family : {"llama", "qwen2"}) {
    INFO(family);
    check_logits(write_as(family, {}));
    for (const quant_format& format : formats_to_write()) {
      INFO(name_of(format));
      check_logits(write_as(family, {format}));
    }
  }
}
TEST_CASE("gguf: every architecture, with matrices of different formats in one file") {
  for (const std::string model :
       {"llama", "llama_tied_bias", "llama_rope_linear", "llama_rope_yarn", "mistral", "qwen2", "qwen3", "gemma",
        "gpt2", "gemma2", "gemma3", "granite", "olmo2", "phi3", "phi3_longrope", "smollm3"}) {
    INFO(model);
    check_logits(write_as(model, {}));
    check_logits(write_as(model, formats_to_write()));
  }
}
TEST_CASE("gguf: a file may divide the frequencies of positions") {
  const temp_folder folder;
  const written plain = write_as("llama", {});
  auto model = io::hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE_MESSAGE(model, model.message());
  std::vector<float> divisors(static_cast<std::size_t>(model->config().head_dim / 2), 1.0F);
  divisors.front() = 3, divisors[1] = 8;
  const written w = write_as("llama", {}, divisors);
  const std::string file = folder.path / "model.gguf";
  std::ofstream(file, std::ios::binary) << w.file;
  auto read = io::load_gguf<engine>(file);
  REQUIRE_MESSAGE(read, read.message());
  const std::vector<float> found = logits_of(*read);
  double most = 0, changed = 0, size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    most = std::max(most, std::abs(double(found[i]) - double(w.expected[i])));
    changed = std::max(changed, std::abs(double(found[i]) - double(plain.expected[i])));
    size = std::max(size, std::abs(double(w.expected[i])));
  }
  CHECK(most < 2e-5 * size);
  CHECK(changed > 1e-3 * size);
  divisors.pop_back();
  CHECK(refused(write_as("llama", {}, {1.0F, 2.0F}).file).find("'rope_freqs.weight' has 2 numbers") !=
        std::string::npos);
  divisors.push_back(0);
  CHECK(refused(write_as("llama", {}, divisors).file).find("divides no frequency") != std::string::npos);
}
TEST_CASE("gguf: what is wrong with a file is said") {
  const std::string good = write_as("llama", {}).file;
  CHECK(refused(good) == "");
  CHECK(refused("GGML").find("no GGUF file") != std::string::npos);
  for (std::size_t n = 0; n < 600; n += 7) CHECK(refused(good.substr(0, n)) != "");
  CHECK(refused(good.substr(0, good.size() - 100)).find("beyond the end") != std::string::npos);
  std::string other = good;
  other[4] = 9;
  CHECK(refused(other).find("version 9") != std::string::npos);
  other = good;
  other.replace(good.find("llama"), 5, "gemma");
  CHECK(refused(other).find("'llama.block_count'") == std::string::npos);
  CHECK(refused(other).find("'gemma.block_count' is missing") != std::string::npos);
  other.replace(good.find("llama"), 5, "phi3x");
  CHECK(refused(other).find("'general.architecture' is 'phi3x', expected llama, qwen2, qwen3, gemma, gemma2, gemma3, "
                            "granite, olmo2, phi3, smollm3, qwen2moe, qwen3moe, gpt-oss or gpt2") != std::string::npos);
  other = good;
  other.replace(good.find("ffn_up"), 6, "ffn_xx");
  CHECK(refused(other).find("ffn_xx") != std::string::npos);
  other = good;
  other.replace(good.find("llama.block_count"), 17, "llama.block_kount");
  CHECK(refused(other).find("'llama.block_kount' is not a setting that is supported") != std::string::npos);
}

namespace {

// A file of two facts and one tensor; `change` writes more facts.
template <class F> std::string refused_facts(F change) {
  gguf_writer to;
  to.fact("general.architecture", "llama").fact("llama.block_count", 4, std::uint32_t{1});
  to.fact("llama.embedding_length", 4, std::uint32_t{32}).fact("llama.feed_forward_length", 4, std::uint32_t{32});
  to.fact("llama.attention.head_count", 4, std::uint32_t{2});
  to.fact("llama.attention.layer_norm_rms_epsilon", 6, 1e-5F);
  change(to);
  const std::vector<float> table(64 * 32, 0.5F);
  to.tensor("token_embd.weight", view_of(table.data(), 64, 32), 0, std::as_bytes(std::span(table)));
  const auto parsed = io::parse_gguf(io::make_owned_bytes(bytes_of(to.whole())), "model.gguf");
  REQUIRE_MESSAGE(parsed, parsed.message());
  const auto config = io::config_of(*parsed);
  return config ? "" : config.message();
}
// A file of one tensor [rows, cols] of a type, with `bytes` bytes.
std::string refused_tensor(std::uint32_t type, long long rows, long long cols, std::size_t bytes) {
  const std::vector<std::byte> data(bytes);
  gguf_writer to;
  to.tensor("w", view{nullptr, dtype::f32, {rows, cols, 1, 1}, 2}, type, data);
  std::string file = to.whole();
  file.resize(file.size() - (bytes + 31) / 32 * 32 + bytes);
  const auto parsed = io::parse_gguf(io::make_owned_bytes(bytes_of(file)), "model.gguf");
  return parsed ? "" : parsed.message();
}

}  // namespace

TEST_CASE("gguf: facts that change what is computed are read or refused by name") {
  const auto message_of = [](auto change) { return refused_facts(change); };
  CHECK(message_of([](gguf_writer&) {}) == "");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.expert_count", 4, std::uint32_t{0}); }) == "");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.expert_count", 4, std::uint32_t{8}); }) ==
        "model.gguf: the fact 'llama.expert_used_count' is missing");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.logit_scale", 6, 2.0F); }) ==
        "model.gguf: the fact 'llama.logit_scale' is not a setting that is supported");
  CHECK(message_of([](gguf_writer& w) { w.fact("general.type", "adapter"); }) ==
        "model.gguf: 'general.type' is 'adapter', expected a model");
  CHECK(message_of([](gguf_writer& w) { w.fact("split.count", 2, std::uint16_t{3}); }) ==
        "model.gguf: this is one of 3 files of a model; join them with llama-gguf-split --merge");
  CHECK(
      message_of([](gguf_writer& w) { w.fact("llama.rope.scaling.type", "longrope"); }) ==
      "model.gguf: positions are scaled by 'longrope', expected none, linear or yarn; load the model from its Hugging "
      "Face folder");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.rope.scaling.type", "linear"); }) ==
        "model.gguf: the fact 'llama.rope.scaling.factor' is missing");
  CHECK(message_of([](gguf_writer& w) {
          w.fact("llama.rope.scaling.type", "yarn").fact("llama.rope.scaling.factor", 6, 0.5F);
        }) == "model.gguf: the fact 'llama.rope.scaling.factor' is below 1, and yarn stretches positions");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.rope.freq_base", 6, NAN); }) ==
        "model.gguf: the fact 'llama.rope.freq_base' is no number above 0");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.attention.value_length", 4, std::uint32_t{8}); }) ==
        "model.gguf: keys of 16 and values of 8 elements are not supported");
  CHECK(message_of([](gguf_writer& w) { w.fact("llama.attention.causal", 7, std::uint8_t{0}); }) ==
        "model.gguf: the fact 'llama.attention.causal' is not 1: tokens attend to those before them only");
  CHECK(message_of([](gguf_writer& w) { w.fact("tokenizer.ggml.eos_token_id", 6, 2.0F); }) ==
        "model.gguf: the fact 'tokenizer.ggml.eos_token_id' is no token");
}
TEST_CASE("gguf: merging keeps K-quants that can be made, refuses others before anything changes, and gives floats") {
  const std::string folder = GRAFT_GOLDEN_DIR "/gguf/llama_mixed";
  auto model = io::load_gguf<engine>(folder + "/model.gguf");
  REQUIRE_MESSAGE(model, model.message());
  auto adapters = io::hf::load_adapters(folder + "/adapter", *model);
  REQUIRE_MESSAGE(adapters, adapters.message());
  const std::string made_of = "model.layers.0.self_attn.v_proj", only_read = "model.layers.1.self_attn.v_proj";
  adapter_set other = adapters->set;
  for (module_adapter& m : other.modules)
    if (m.module == made_of) m.module = only_read;
  status set = model->set_adapters(std::move(adapters->set));
  REQUIRE_MESSAGE(set, set.message());
  const auto kept = model->merged_weights();
  REQUIRE_MESSAGE(kept, kept.message());
  CHECK(std::string(name_of(kept->tensors.at(made_of + ".weight").quant->format)) == "q5_k");
  set = model->set_adapters(std::move(other));
  REQUIRE_MESSAGE(set, set.message());
  const std::vector<float> before = logits_of(*model, {1, 5, 7});
  const auto quantized = model->merged_weights();
  CHECK(std::string(quantized.message()) ==
        only_read + ": weights in q3_k are read and not written; take the merged weights as f32 or bf16");
  CHECK(logits_of(*model, {1, 5, 7}) == before);
  for (const auto& [as, type] : {std::pair{merged_format::f32, dtype::f32}, {merged_format::bf16, dtype::bf16}}) {
    auto merged = model->merged_weights(model->active(), as);
    REQUIRE_MESSAGE(merged, merged.message());
    CHECK(merged->tensors.at(only_read + ".weight").type == type);
    CHECK(merged->tensors.at("model.layers.0.self_attn.q_proj.weight").type == dtype::ggml);  // shared with the base
  }
}
TEST_CASE("gguf: tokens that end a text, and settings of positions") {
  gguf_writer to;
  to.fact("general.architecture", "llama").fact("llama.block_count", 4, std::uint32_t{1});
  to.fact("llama.embedding_length", 4, std::uint32_t{32}).fact("llama.feed_forward_length", 4, std::uint32_t{32});
  to.fact("llama.attention.head_count", 4, std::uint32_t{2}).fact("llama.context_length", 4, std::uint32_t{256});
  to.fact("llama.attention.layer_norm_rms_epsilon", 6, 1e-5F).fact("llama.attention.scale", 6, 0.125F);
  to.fact("tokenizer.ggml.bos_token_id", 4, std::uint32_t{1}).fact("tokenizer.ggml.eos_token_id", 4, std::uint32_t{2});
  to.fact("tokenizer.ggml.eot_token_id", 4, std::uint32_t{7}).fact("tokenizer.ggml.eom_token_id", 4, std::uint32_t{2});
  to.fact("tokenizer.ggml.padding_token_id", 4, std::uint32_t{0xffffffff});
  to.fact("llama.rope.scaling.type", "yarn").fact("llama.rope.scaling.factor", 6, 4.0F);
  to.fact("llama.rope.scaling.original_context_length", 4, std::uint32_t{64});
  to.fact("llama.rope.scaling.attn_factor", 6, 2.0F).fact("llama.rope.scaling.yarn_beta_fast", 6, 16.0F);
  const std::vector<float> table(64 * 32, 0.5F);
  to.tensor("token_embd.weight", view_of(table.data(), 64, 32), 0, std::as_bytes(std::span(table)));
  const auto parsed = io::parse_gguf(io::make_owned_bytes(bytes_of(to.whole())), "model.gguf");
  REQUIRE_MESSAGE(parsed, parsed.message());
  const auto c = io::config_of(*parsed);
  REQUIRE_MESSAGE(c, c.message());
  CHECK(c->tokens.bos_token == 1);
  CHECK(c->tokens.eos_tokens == std::vector<int>{2, 7});
  CHECK_FALSE(c->tokens.pad_token.has_value());
  CHECK(c->attention_scale == 0.125);
  CHECK(c->rope.kind == rope_kind::yarn);
  CHECK(c->rope.original_positions == 64);
  CHECK(c->rope.beta_fast == 16);
  CHECK(*c->rope.attention_factor == doctest::Approx(2 * (0.1 * std::log(4.0) + 1)));
}
TEST_CASE("gguf: tensors whose type is not read, whose rows are no whole blocks, or that are cut short") {
  CHECK(refused_tensor(12, 3, 512, 3 * 2 * 144) == "");
  CHECK(refused_tensor(12, 3, 512, 3 * 2 * 144 - 1) ==
        "model.gguf: tensor 'w' of 864 bytes reaches beyond the end of the file");
  CHECK(refused_tensor(12, 3, 288, 10000) ==
        "model.gguf: tensor 'w' is q4_k with rows of 288 elements, expected a matrix or those of experts, whose rows "
        "are whole blocks of 256");
  for (const auto& [type, name] : {std::pair{16U, "IQ2_XXS"},
                                   {9U, "Q8_1"},
                                   {40U, "NVFP4"},
                                   {28U, "F64"},
                                   {4U, "unknown"},
                                   {0xffffffffU, "unknown"}}) {
    const std::string message = refused_tensor(type, 3, 512, 10000);
    INFO(message);
    CHECK(message.find(
              "has ggml's type " + std::to_string(type) + " (" + name +
              "), expected one of f32, f16, bf16, q4_0, "
              "q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4; quantize the model to "
              "one of them") != std::string::npos);
  }
  CHECK(refused_tensor(12, 1LL << 40, 1LL << 40, 10000).find("has an axis of") != std::string::npos);
}
