// SPDX-License-Identifier: Apache-2.0
// A model with autotuned launches (step_mode::max_autotune): the same bits captured or not, and in a second program
// that reads the results of the first; compared with the heuristic's launches only the order of sums may differ.
#include <doctest/doctest.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/trainer.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "../support/gpu_layer.h"
#include "../support/random_model.h"

using namespace graft;

namespace {

using engine = gpu::engine<__nv_bfloat16>;
using sequences = std::vector<std::vector<std::int64_t>>;

bool no_gpu() {
  const std::string why = ::test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}
struct temporary_file {
  std::string path = (std::filesystem::temp_directory_path() / "graft_model_choices.txt").string();
  temporary_file() { std::filesystem::remove(path); }
  ~temporary_file() { std::filesystem::remove(path); }
};

// A Llama with LoRA on all projections, with the same weights each time.
causal_lm<engine> a_llama() {
  const model_config c = graft::test::llama_config(2, 1024, 2048, 512, 512);
  auto model = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = 512});
  REQUIRE(bool(model));
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_string("all-linear")},
                                               {"r", io::json_number(16)},
                                               {"init_lora_weights", io::json_bool(false)}});
  REQUIRE(bool(config));
  auto adapter = io::hf::new_adapter(*model, *config);
  INFO(std::string(adapter.message()));
  REQUIRE(bool(adapter));
  REQUIRE(bool(model->set_adapters(adapter->set)));
  return std::move(*model);
}
sequences prompts() {
  sequences all(3);
  for (std::size_t k = 0; k < all.size(); ++k)
    for (std::uint64_t i = 0; i < 90 * k + 5; ++i)
      all[k].push_back(static_cast<std::int64_t>(splitmix64(100 * k + i) % 512));
  return all;
}
sequences generated(causal_lm<engine>& model, step_mode how) {
  generation_settings settings;
  settings.max_new_tokens = 12, settings.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(model, settings, 3, 320, how);
  REQUIRE(bool(g));
  const auto made = g->run(prompts());
  INFO(std::string(made.message()));
  REQUIRE(bool(made));
  sequences all;
  for (const generated_sequence& s : *made) all.push_back(s.tokens);
  return all;
}
std::vector<float> logits_of(causal_lm<engine>& model) {
  const sequences all = prompts();
  const sequence_chunk run[] = {{all[1], 0, 0}, {all[2], 0, 320}};
  std::vector<float> logits(2 * 512);
  const status done = model.logits(run, logits, true);
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  return logits;
}
std::vector<double> losses(causal_lm<engine>& model, step_mode how) {
  trainer_settings settings;
  settings.steps = 4, settings.batch = 2, settings.mode = how;
  const sequences data = prompts();
  auto t = trainer<engine>::make(model, data, settings);
  INFO(std::string(t.message()));
  REQUIRE(bool(t));
  std::vector<double> all;
  const status done = t->run([&](const step_report& r) { return all.push_back(r.loss), true; });
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  return all;
}
int timed(causal_lm<engine>& model) { return model.programs().queue.tuner->timed(); }

}  // namespace

TEST_CASE("gpu autotune of models: captured or not, in the first program or the second, the same bits") {
  if (no_gpu()) return;
  const temporary_file file;
  auto ruled = a_llama();
  const std::vector<float> expected = logits_of(ruled);
  auto model = a_llama();
  REQUIRE(bool(model.enable_autotuning(file.path)));
  const std::vector<float> logits = logits_of(model);
  CHECK(timed(model) > 0);
  float largest = 0, error = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    largest = std::max(largest, std::abs(expected[i])), error = std::max(error, std::abs(expected[i] - logits[i]));
  CHECK(error < 2e-2F * largest);
  const sequences tokens = generated(model, step_mode::max_autotune);
  CHECK(generated(model, step_mode::standard) == tokens);

  auto second = a_llama();
  REQUIRE(bool(second.enable_autotuning(file.path)));
  CHECK(second.autotune_warning().empty());
  CHECK(logits_of(second) == logits);
  CHECK(generated(second, step_mode::max_autotune) == tokens);
  CHECK(timed(second) == 0);
}
TEST_CASE("gpu autotune of models: a captured training step gives the losses of one that is not captured") {
  if (no_gpu()) return;
  const temporary_file file;
  auto ruled = a_llama(), first = a_llama(), second = a_llama();
  const std::vector<double> expected = losses(ruled, step_mode::reduce_overhead);
  REQUIRE(bool(first.enable_autotuning(file.path)));
  const std::vector<double> one = losses(first, step_mode::max_autotune);
  REQUIRE(bool(second.enable_autotuning(file.path)));
  CHECK(losses(second, step_mode::standard) == one);
  CHECK(timed(second) == 0);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(std::abs(one[i] - expected[i]) < 1e-2 * std::abs(expected[i]));
}
