// SPDX-License-Identifier: Apache-2.0
// Whole models from folders that transformers wrote, against its logits and its greedy tokens.
#include <doctest/doctest.h>
#include <graft/io/hf/load_model.h>
#include <graft/io/safetensors_write.h>
#include <graft/io/tensor_values.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>

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
std::vector<row_run> runs_of(const std::vector<std::vector<std::int64_t>>& sequences) {
  std::vector<row_run> runs;
  for (const auto& s : sequences) runs.push_back({s, 0, 0});
  return runs;
}
generation_settings greedy(int tokens) {
  generation_settings how;
  how.new_tokens = tokens;
  return how;
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
      CHECK(q.why == stop_reason::new_tokens);
    }
    CHECK(tokens == e.generated);
    ++models;
  }
  CHECK(models == 13);
}

TEST_CASE("generate: a batch of different lengths gives the tokens of its sequences one by one, drawn or not") {
  auto model = hf::load_model<engine>(golden / "mistral" / "base");
  REQUIRE(model);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}, {17}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  for (const bool sample : {false, true}) {
    generation_settings how = greedy(12);
    how.sampling = {sample, 1.3, 40, 0.95, 1.1, 77};
    auto together = generator<engine>::make(*model, how, 3, 30);
    REQUIRE(together);
    const auto all = together->run(prompts);
    REQUIRE(all);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      auto alone = generator<engine>::make(*model, how, 1, 30);
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
  generation_settings how = greedy(12);
  auto whole = generator<engine>::make(*model, how, 4, 30);
  REQUIRE(whole);
  const auto expected = whole->run(prompts);
  REQUIRE(expected);
  for (const int piece : {1, 2, 4, 7, 15}) {
    how.prefill_chunk_size = piece;
    auto g = generator<engine>::make(*model, how, 4, 30);
    REQUIRE(g);
    const auto made = g->run(prompts);
    REQUIRE(made);
    for (std::size_t i = 0; i < prompts.size(); ++i) CHECK((*made)[i].tokens == (*expected)[i].tokens);
  }
  how.prefill_chunk_size = 0;
  CHECK(contains(generator<engine>::make(*model, how, 4, 30).message(), "prefill_chunk_size is 0"));
}

TEST_CASE("generate: why a sequence ends") {
  auto model = hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE(model);
  const std::vector<std::vector<std::int64_t>> prompts{{5, 9, 200}, {17}};
  auto g = generator<engine>::make(*model, {}, 2, 8);
  REQUIRE(g);
  const auto full = g->run(prompts);
  REQUIRE(full);
  CHECK((*full)[0].why == stop_reason::no_room);
  CHECK((*full)[0].tokens.size() == 8);
  generation_settings how;
  how.end = {static_cast<int>((*full)[0].tokens[4])};
  auto ends = generator<engine>::make(*model, how, 2, 8);
  REQUIRE(ends);
  const auto ended = ends->run(std::span(prompts).first(1));
  REQUIRE(ended);
  CHECK((*ended)[0].why == stop_reason::end_token);
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
TEST_CASE("load_model: GPT-2 in codes, which are [out, in], is refused with a projection that stayed [in, out]") {
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
  CHECK(contains(model.message(), "tensor 'transformer.h.0.attn.c_proj.weight' is no codes"));
}
