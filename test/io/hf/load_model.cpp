// SPDX-License-Identifier: Apache-2.0
// Whole models from folders that transformers wrote, against its logits and its greedy tokens.
#include <doctest/doctest.h>
#include <graft/io/hf/load_model.h>
#include <graft/io/safetensors/convert.h>
#include <graft/io/safetensors/writer.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>

#include <fstream>

#include "../../support/subprocess.h"
#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;
using engine = cpu::engine<float>;

namespace {

const std::filesystem::path golden = GRAFT_GOLDEN_DIR "/models";

struct expected {
  std::vector<std::int64_t> ids, generated;
  std::vector<float> logits;
  std::size_t batch, length;

  explicit expected(const std::string& base) {
    const auto file = read_safetensors(base + "/expected.safetensors");
    REQUIRE(file);
    ids = *to_int64(*file->find("ids")), generated = *to_int64(*file->find("generated"));
    logits = *to_float(*file->find("logits"));
    batch = file->find("ids")->shape[0], length = file->find("ids")->shape[1];
  }
  std::vector<std::vector<std::int64_t>> prompts() const {
    std::vector<std::vector<std::int64_t>> all;
    for (std::size_t b = 0; b < batch; ++b)
      all.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(b * length),
                       ids.begin() + static_cast<std::ptrdiff_t>((b + 1) * length));
    return all;
  }
};
std::vector<sequence_chunk> runs_of(const std::vector<std::vector<std::int64_t>>& sequences) {
  std::vector<sequence_chunk> runs;
  for (const auto& s : sequences) runs.push_back({s, 0, 0});
  return runs;
}
generation_settings greedy(int tokens) {
  generation_settings settings;
  settings.max_new_tokens = tokens;
  settings.eos_tokens = no_eos_tokens;
  return settings;
}

}  // namespace

TEST_CASE("load_model: logits and greedy tokens of every family are those of transformers") {
  int models = 0;
  for (const auto& folder : std::filesystem::directory_iterator(golden)) {
    const std::string base = folder.path() / "base";
    CAPTURE(base);
    auto model = hf::load_model<engine>(base);
    CAPTURE(std::string(model.message()));
    REQUIRE(model);
    const expected e(base);
    const auto prompts = e.prompts();
    std::vector<float> logits(e.logits.size());
    const status s = model->logits(runs_of(prompts), logits);
    CAPTURE(std::string(s.message()));
    REQUIRE(s);
    float largest = 0, difference = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::abs(e.logits[i]));
      difference = std::max(difference, std::abs(logits[i] - e.logits[i]));
    }
    CHECK(difference < 1e-5F * largest);

    auto g = generator<engine>::make(*model, greedy(24), static_cast<int>(e.batch), static_cast<int>(e.length) + 24);
    REQUIRE(g);
    const auto out = g->run(prompts);
    REQUIRE(out);
    std::vector<std::int64_t> tokens;
    for (const generated_sequence& q : *out) {
      tokens.insert(tokens.end(), q.tokens.begin(), q.tokens.end());
      CHECK(q.why == stop_reason::max_new_tokens);
    }
    CHECK(tokens == e.generated);
    ++models;
  }
  CHECK(models == 21);
}

TEST_CASE("generate: a batch of different lengths gives the tokens of its sequences one by one, drawn or not") {
  auto model = hf::load_model<engine>(golden / "mistral" / "base");
  REQUIRE(model);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}, {17}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  for (const bool sample : {false, true}) {
    generation_settings settings = greedy(12);
    settings.sampling = {sample, 1.3, 40, 0.95, 1.1, 77};
    auto together = generator<engine>::make(*model, settings, 3, 30);
    REQUIRE(together);
    const auto all = together->run(prompts);
    REQUIRE(all);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      auto alone = generator<engine>::make(*model, settings, 1, 30);
      REQUIRE(alone);
      // A draw follows from the number of the sequence too, so drawn tokens are compared for the first one.
      if (sample && i > 0) continue;
      const auto one = alone->run(std::span(prompts).subspan(i, 1));
      REQUIRE(one);
      CHECK((*one)[0].tokens == (*all)[i].tokens);
    }
    const auto again = together->run(prompts);
    REQUIRE(again);
    CHECK((*again)[2].tokens == (*all)[2].tokens);
  }
}

TEST_CASE("generate: prompts that go through in pieces give the tokens of whole ones") {
  auto model = hf::load_model<engine>(golden / "mistral" / "base");
  REQUIRE(model);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}, {17}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {8, 8}};
  generation_settings settings = greedy(12);
  auto whole = generator<engine>::make(*model, settings, 4, 30);
  REQUIRE(whole);
  const auto expected = whole->run(prompts);
  REQUIRE(expected);
  for (const int piece : {1, 2, 4, 7, 15}) {
    settings.prefill_chunk_size = piece;
    auto g = generator<engine>::make(*model, settings, 4, 30);
    REQUIRE(g);
    const auto made = g->run(prompts);
    REQUIRE(made);
    for (std::size_t i = 0; i < prompts.size(); ++i) CHECK((*made)[i].tokens == (*expected)[i].tokens);
  }
  settings.prefill_chunk_size = 0;
  CHECK(contains(generator<engine>::make(*model, settings, 4, 30).message(), "prefill_chunk_size is 0"));
}

TEST_CASE("generate: why a sequence ends") {
  auto model = hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE(model);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}, {17}};
  generation_settings endless;
  endless.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(*model, endless, 2, 8);
  REQUIRE(g);
  const auto full = g->run(prompts);
  REQUIRE(full);
  CHECK((*full)[0].why == stop_reason::cache_full);
  CHECK((*full)[0].tokens.size() == 8);
  generation_settings settings;
  settings.eos_tokens = std::vector<int>{static_cast<int>((*full)[0].tokens[4])};
  auto ends = generator<engine>::make(*model, settings, 2, 8);
  REQUIRE(ends);
  const auto ended = ends->run(std::span(prompts).first(1));
  REQUIRE(ended);
  CHECK((*ended)[0].why == stop_reason::eos_token);
  CHECK((*ended)[0].tokens.size() <= 5);
  int seen = 0;
  const auto called = g->run(prompts, [&](std::size_t i, std::int64_t) { return i != 1 || ++seen < 2; });
  REQUIRE(called);
  CHECK((*called)[1].why == stop_reason::caller);
  CHECK((*called)[1].tokens.size() == 3);
  CHECK((*called)[0].tokens == (*full)[0].tokens);
  CHECK_FALSE(g->run(std::vector<std::vector<std::int64_t>>(3, {1})));
  CHECK_FALSE(g->run(std::vector<std::vector<std::int64_t>>(1)));
  CHECK_FALSE(g->run(std::vector<std::vector<std::int64_t>>(1, std::vector<std::int64_t>(9, 1))));
  CHECK(contains(g->run(std::vector<std::vector<std::int64_t>>{{256}}).message(), "id 256"));
  CHECK(contains(generator<engine>::make(*model, {}, 1, 100000).message(), "do not fit the 256 positions"));
}

TEST_CASE("generate: temperature 0 gives the tokens of the most likely ones, and bad settings are refused") {
  auto model = hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE(model);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}, {17}};
  const auto tokens = [&](const generation_settings& settings) {
    auto g = generator<engine>::make(*model, settings, 2, 20);
    REQUIRE(g);
    const auto made = g->run(prompts);
    REQUIRE(made);
    return std::vector{(*made)[0].tokens, (*made)[1].tokens};
  };
  generation_settings settings = greedy(12);
  const auto expected = tokens(settings);
  settings.sampling = {true, 0, 0, 1, 1, 3};
  CHECK(tokens(settings) == expected);
  settings.sampling.temperature = 1;
  CHECK(tokens(settings) != expected);
  const auto refused = [&](auto change) {
    generation_settings bad = greedy(4);
    bad.sampling.sample = true;
    change(bad);
    return std::string(generator<engine>::make(*model, bad, 2, 20).message());
  };
  const auto says = [](const std::string& message, const char* what) { return contains(message.c_str(), what); };
  CHECK(says(refused([](auto& s) { s.sampling.temperature = -1; }), "temperature is -1, expected"));
  CHECK(says(refused([](auto& s) { s.sampling.temperature = std::nan(""); }), "temperature is nan, expected"));
  CHECK(says(refused([](auto& s) { s.sampling.top_p = 7; }), "top_p is 7, expected"));
  CHECK(says(refused([](auto& s) { s.sampling.top_k = -3; }), "top_k is -3, expected"));
  CHECK(says(refused([](auto& s) { s.sampling.repetition_penalty = 0; }), "repetition_penalty is 0, expected"));
  CHECK(says(refused([](auto& s) { s.sampling.min_p = 2; }), "min_p is 2, expected"));
  CHECK(says(refused([](auto& s) { s.max_new_tokens = -1; }), "max_new_tokens is -1, expected"));
  CHECK(says(refused([](auto& s) { s.max_length = -1; }), "max_length is -1, expected"));
}

TEST_CASE("generate: the tokens that end a sequence are those of the folder unless others, or none, are set") {
  temp_folder dir;
  const std::string base = golden / "llama" / "base", copy = dir.path / "m";
  std::filesystem::create_directory(copy);
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(base + "/" + name, copy + "/" + name);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}};
  const auto ended_after = [&](const std::string& generation_config, const generation_settings& settings) {
    std::ofstream(copy + "/generation_config.json") << generation_config;
    auto model = hf::load_model<engine>(copy);
    CAPTURE(std::string(model.message()));
    REQUIRE(model);
    auto g = generator<engine>::make(*model, settings, 1, 20);
    REQUIRE(g);
    const auto made = g->run(prompts);
    REQUIRE(made);
    return std::pair{(*made)[0].why, (*made)[0].tokens};
  };
  const auto endless = ended_after("{}", greedy(12));
  CHECK(endless.first == stop_reason::max_new_tokens);
  const std::int64_t third = endless.second[5];
  const auto first = static_cast<std::size_t>(std::find(endless.second.begin() + 3, endless.second.end(), third) -
                                              endless.second.begin());
  generation_settings settings;
  settings.max_new_tokens = 12;
  const std::string named = "{\"eos_token_id\": [7000, " + std::to_string(third) + "], \"num_beams\": 4}";
  const auto ended = ended_after(named, settings);
  CHECK(ended.first == stop_reason::eos_token);
  CHECK(ended.second.size() == first + 1);
  CHECK(ended_after(named, greedy(12)) == endless);
  settings.eos_tokens = std::vector<int>{static_cast<int>(endless.second[3])};
  CHECK(ended_after(named, settings).second.size() == 4);
  std::ofstream(copy + "/generation_config.json") << R"({"eos_token_id": "no"})";
  CHECK(contains(hf::load_model<engine>(copy).message(), "generation_config.json: 'eos_token_id' is \"no\""));
}

TEST_CASE("generate: a model loaded with fewer positions than it has says how to load it with more") {
  auto model = hf::load_model<engine>(golden / "llama" / "base", {.context = 32});
  REQUIRE(model);
  CHECK(contains(
      generator<engine>::make(*model, {}, 1, 100).message(),
      "do not fit the 32 positions that the model was loaded with; load it with model_options::context = 100"));
}

TEST_CASE("load_model: folders that do not fit their configuration are refused, with the tensor's name") {
  temp_folder dir;
  const std::string base = golden / "llama" / "base", copy = dir.path / "m";
  const auto file = read_safetensors(base + "/model.safetensors");
  REQUIRE(file);
  std::filesystem::create_directory(copy);
  std::filesystem::copy_file(base + "/config.json", copy + "/config.json");
  const auto message = [&](std::vector<tensor_view> tensors) {
    REQUIRE(write_safetensors(copy + "/model.safetensors", tensors));
    return std::string(hf::load_model<engine>(copy).message());
  };
  CHECK(message(file->tensors) == "");
  auto fewer = file->tensors;
  std::erase_if(fewer, [](const tensor_view& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  CHECK(message(fewer).find("there is no tensor 'model.layers.1.mlp.up_proj.weight'") != std::string::npos);
  auto more = file->tensors;
  more.push_back(more[0]);
  more.back().name = "model.layers.2.mlp.up_proj.weight";
  CHECK(message(more).find("tensor 'model.layers.2.mlp.up_proj.weight' is not part of a llama model of 2 layers") !=
        std::string::npos);
  auto wrong = file->tensors;
  for (tensor_view& t : wrong)
    if (t.name == "model.layers.0.self_attn.k_proj.weight") std::swap(t.shape[0], t.shape[1]);
  CHECK(message(wrong).find("'self_attn.k_proj.weight'") != std::string::npos);
  CHECK(message(wrong).find("model.layers.0") != std::string::npos);
}
TEST_CASE(
    "load_model: quantized GPT-2, whose weights are [out, in], is refused with a projection that stayed [in, out]") {
  temp_folder dir;
  const std::string base = GRAFT_GOLDEN_DIR "/quantized/models/gpt2_nf4/base", copy = dir.path / "m";
  const auto file = read_safetensors(base + "/model.safetensors");
  REQUIRE(file);
  std::filesystem::create_directory(copy);
  std::filesystem::copy_file(base + "/config.json", copy + "/config.json");
  const std::string projection = "transformer.h.0.attn.c_proj.weight";
  const std::vector<float> numbers(64 * 64, 0.25F);
  auto tensors = file->tensors;
  CHECK(std::erase_if(tensors, [&](const tensor_view& t) { return t.name.starts_with(projection); }) > 1);
  tensors.push_back({projection, io::safetensors_type::f32, {64, 64}, std::as_bytes(std::span(numbers))});
  REQUIRE(write_safetensors(copy + "/model.safetensors", tensors));
  const auto model = hf::load_model<engine>(copy);
  REQUIRE_FALSE(model);
  CHECK(contains(model.message(), "tensor 'transformer.h.0.attn.c_proj.weight' is not quantized"));
}

TEST_CASE("load_model: a model that was moved from ends the program with a sentence") {
  const char* const name = "load_model: a model that was moved from ends the program with a sentence";
  CHECK(::test::last_words(name, [] {
          auto model = hf::load_model<engine>(golden / "llama" / "base");
          const auto moved = std::move(*model);
          static_cast<void>(model->activate({}));
        }) == "graft: a model that was moved from was used; use the one that it was moved to\n");
  auto model = hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE(model);
  auto& same = *model;
  *model = std::move(same);
  CHECK(bool(model->activate({})));
  CHECK(model->config().layers > 0);
}
