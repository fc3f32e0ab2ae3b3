// SPDX-License-Identifier: Apache-2.0
// Every kernel of a model in bf16 on sizes so small that compute-sanitizer can check all of it (test/sanitize_gpu.sh):
// 1 to 64 sequences of any lengths until their KV cache is full, prompts, and training steps on ragged batches, with
// plain and quantized weights. The tests also check that results are the same bits, captured or not, and in every run.
#include <doctest/doctest.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/trainer.h>

#include <cmath>
#include <cstdio>
#include <type_traits>

#include "../support/gpu_layer.h"
#include "../support/random_model.h"

using namespace graft;

namespace {

using narrow_type = gpu::engine<__nv_bfloat16>;
using wide = gpu::engine<float>;
using sequences = std::vector<std::vector<std::int64_t>>;
constexpr int vocabulary = 128;

bool no_gpu() {
  const std::string why = ::test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}
// TMA and wgmma need realistic sizes. Kernels in float run with any sizes, and racecheck tracks each of their accesses
// to shared memory, so they get a sixteenth of the weights.
template <class Engine> model_config a_shape() {
  if (!std::is_same_v<Engine, wide>) return graft::test::llama_config(1, 512, 768, vocabulary, 256);
  model_config c = graft::test::llama_config(1, 512, 192, vocabulary, 256);
  c.hidden_size = c.embedding_width = 128, c.head_dim = 32, c.attention_scale = 1 / std::sqrt(32.0);
  return c;
}
template <class Engine> causal_lm<Engine> a_llama(bool is_quantized, double dropout = 0) {
  const model_config c = a_shape<Engine>();
  auto model = causal_lm<Engine>::make(c, graft::test::random_weights(c, is_quantized), {.context = 256});
  REQUIRE(bool(model));
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_string("all-linear")},
                                               {"r", io::json_number(8)},
                                               {"lora_dropout", io::json_number(dropout)},
                                               {"init_lora_weights", io::json_bool(false)}});
  REQUIRE(bool(config));
  auto adapter = io::hf::new_adapter(*model, *config);
  REQUIRE(bool(adapter));
  REQUIRE(bool(model->set_adapters(adapter->set)));
  return std::move(*model);
}
sequences of_lengths(const std::vector<int>& lengths) {
  sequences all;
  std::uint64_t drawn = 5;
  for (const int n : lengths) {
    all.emplace_back();
    for (int i = 0; i < n; ++i) all.back().push_back(static_cast<std::int64_t>(splitmix64(drawn++) % vocabulary));
  }
  return all;
}
// Generates until every cache is full.
template <class Engine>
sequences generated(causal_lm<Engine>& model, const sequences& prompts, int length, step_mode how) {
  generation_settings endless;
  endless.eos_tokens = no_eos_tokens;
  auto g = generator<Engine>::make(model, endless, static_cast<int>(prompts.size()), length, how);
  REQUIRE(bool(g));
  const auto made = g->run(prompts);
  INFO(std::string(made.message()));
  REQUIRE(bool(made));
  sequences all;
  for (const generated_sequence& s : *made) {
    CHECK(s.why == stop_reason::cache_full);
    CHECK(s.tokens.size() == static_cast<std::size_t>(length));
    all.push_back(s.tokens);
  }
  return all;
}
template <class Engine> void check_generated(bool is_quantized, const std::vector<int>& numbers, int length) {
  auto model = a_llama<Engine>(is_quantized);
  for (const int n : numbers) {
    std::vector<int> lengths;
    for (int i = 0; i < n; ++i) lengths.push_back(1 + i % (length - 1));
    const sequences prompts = of_lengths(lengths);
    INFO(n, " sequences");
    CHECK(generated(model, prompts, length, step_mode::standard) ==
          generated(model, prompts, length, step_mode::reduce_overhead));
  }
}
template <class Engine> void check_trained(bool is_quantized, const sequences& data, int steps, double dropout = 0) {
  std::vector<double> losses[2];
  for (const step_mode how : {step_mode::standard, step_mode::reduce_overhead}) {
    auto model = a_llama<Engine>(is_quantized, dropout);
    trainer_settings settings;
    settings.steps = steps, settings.batch = static_cast<int>(data.size()), settings.mode = how;
    auto t = trainer<Engine>::make(model, data, settings);
    REQUIRE(bool(t));
    const status done = t->run(
        [&](const step_report& r) { return losses[how == step_mode::standard ? 0 : 1].push_back(r.loss), true; });
    INFO(std::string(done.message()));
    REQUIRE(bool(done));
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0].size() == static_cast<std::size_t>(steps));
}

}  // namespace

TEST_CASE("gpu small: 1 to 64 sequences until their caches are full, captured or not") {
  if (no_gpu()) return;
  check_generated<narrow_type>(false, {1, 3, 17, 64}, 4);
  check_generated<narrow_type>(true, {1, 17}, 3);
}
TEST_CASE("gpu small: a long prompt with short ones") {
  if (no_gpu()) return;
  auto model = a_llama<narrow_type>(false);
  CHECK(generated(model, of_lengths({67, 1, 34}), 68, step_mode::standard).size() == 3);
}
// Ragged batches are never replayed, because only batches with equal lengths are.
TEST_CASE("gpu small: training steps on ragged batches, captured or not") {
  if (no_gpu()) return;
  check_trained<narrow_type>(false, of_lengths({2, 67, 131}), 1);
  check_trained<narrow_type>(true, of_lengths({69}), 2);
}
TEST_CASE("gpu small: training steps with dropout, captured or not") {
  if (no_gpu()) return;
  check_trained<narrow_type>(false, of_lengths({69, 69}), 3, 0.2);
  check_trained<narrow_type>(true, of_lengths({69}), 2, 0.2);
}
// Kernels without TMA, whose stores initcheck tracks.
TEST_CASE("gpu small in float: sequences") {
  if (no_gpu()) return;
  check_generated<wide>(false, {1, 17}, 4);
}
TEST_CASE("gpu small in float: prompts of several tiles") {
  if (no_gpu()) return;
  auto model = a_llama<wide>(false);
  CHECK(generated(model, of_lengths({66, 63, 65}), 67, step_mode::standard).size() == 3);
}
TEST_CASE("gpu small in float: training steps") {
  if (no_gpu()) return;
  check_trained<wide>(false, of_lengths({2, 35}), 1);
  check_trained<wide>(false, of_lengths({2, 35}), 1, 0.2);
}
