// SPDX-License-Identifier: Apache-2.0
// What timing launches gains over the rules that choose them (step_mode::max_autotune): two models in the shape of
// Llama-3-8B with random bf16 weights and LoRA on all seven projections, in turns. Prints one line of JSON:
// microseconds of token steps over a context of 1024, of a prompt and of a training step, by rule and timed, and how
// long timing took.
//     bench_cuda_choices [LAYERS [VOCABULARY]]
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_cuda.cuh>
#include <graft/model/training.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../../test/support/random_model.h"

using namespace graft;
using engine = graft::cuda::engine<__nv_bfloat16>;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() * 1e6;
}
double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

std::vector<std::vector<std::int64_t>> tokens(int sequences, int length, int vocabulary) {
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(sequences));
  std::uint64_t drawn = 77;
  for (auto& s : all)
    for (int i = 0; i < length; ++i)
      s.push_back(static_cast<std::int64_t>(mixed_bits(drawn++) % static_cast<std::uint64_t>(vocabulary)));
  return all;
}
result<double> decode(causal_lm<engine>& model, int sequences, step_mode how) {
  constexpr int context = 1024, steps = 40;
  generation_settings settings;
  settings.new_tokens = steps;
  auto g = generator<engine>::make(model, settings, sequences, context + steps, how);
  if (!g) return g.failure();
  std::vector<double> at;
  const auto made = g->run(tokens(sequences, context, model.config().vocabulary), [&](std::size_t i, std::int64_t) {
    if (i == 0) at.push_back(now());
    return true;
  });
  if (!made) return made.failure();
  std::vector<double> each;
  for (std::size_t k = at.size() / 4; k < at.size(); ++k) each.push_back(at[k] - at[k - 1]);
  return median(each);
}
result<double> prefill(causal_lm<engine>& model, int length) {
  const auto ids = tokens(1, length, model.config().vocabulary);
  const row_run run[] = {{ids[0], 0, 0}};
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocabulary));
  std::vector<double> each;
  for (int k = 0; k < 8; ++k) {
    const double begin = now();
    if (status s = model.logits(run, logits, true); !s) return s.failure();
    if (k > 2) each.push_back(now() - begin);
  }
  return median(each);
}
result<double> train(causal_lm<engine>& model, int sequences, int length, step_mode how, int rounds = 8) {
  auto run = training_run<engine>::make(model, {.steps = how});
  if (!run) return run.failure();
  auto optimizer = run->optimizer();
  if (!optimizer) return optimizer.failure();
  const auto ids = tokens(sequences, length, model.config().vocabulary);
  std::vector<labelled_sequence> batch;
  for (const auto& s : ids) batch.push_back({s});
  std::vector<double> each;
  const auto kept = run->kept_bytes(static_cast<long long>(sequences) * length);
  if (!kept) return kept.failure();
  std::printf(", \"planned_for_backward_mb\": %.0f", static_cast<double>(*kept) / 1e6);
  for (int k = 0; k < rounds; ++k) {
    const double begin = now();
    if (auto made = run->step(batch, *optimizer, 1e-4, 1); !made) return made.failure();
    if (k > 2 || k + 1 == rounds) each.push_back(now() - begin);
  }
  std::printf(", \"held_for_backward_mb\": %.0f", static_cast<double>(run->held_bytes()) / 1e6);
  return median(each);
}

status with_lora(causal_lm<engine>& model) {
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_word("all-linear")},
                                               {"r", io::json_number(16)},
                                               {"lora_alpha", io::json_number(32)}});
  if (!config) return config.failure();
  auto made = io::hf::new_adapter(model, *config);
  if (!made) return made.failure();
  return model.set_adapters(made->set);
}
// The least of three medians of either model; and how long the calls took that timed launches.
status measure(int layers, int vocabulary) {
  const model_config c = graft::test::llama_config(layers, 4096, 14336, vocabulary, 4096);
  std::vector<causal_lm<engine>> models;
  for (int k = 0; k < 2; ++k) {
    auto made = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = 4096});
    if (!made) return made.failure();
    models.push_back(std::move(*made));
    if (status s = with_lora(models.back()); !s) return s;
  }
  if (status s = models[1].time_choices("/tmp/graft_bench_choices.txt"); !s) return s;
  std::printf("{\"layers\": %d, \"vocabulary\": %d", layers, vocabulary);
  const auto in_turns = [&](const std::string& name, auto run) -> status {
    double best[2] = {1e30, 1e30}, first = 0;
    for (int round = 0; round < 3; ++round)
      for (std::size_t turn = 0; turn < 2; ++turn) {
        const std::size_t k = (turn + static_cast<std::size_t>(round)) % 2;
        const double begin = now();
        const result<double> took = run(models[k], k == 0 ? step_mode::reduce_overhead : step_mode::max_autotune);
        if (!took) return took.failure();
        best[k] = std::min(best[k], *took);
        if (k == 1) first = round == 0 ? now() - begin : std::max(0.0, first - (round == 1 ? now() - begin : 0));
      }
    std::printf(", \"%s\": %.1f, \"%s_timed\": %.1f, \"%s_timing_ms\": %.0f", name.c_str(), best[0], name.c_str(),
                best[1], name.c_str(), first / 1e3);
    return std::fflush(stdout), status(ok);
  };
  for (const int sequences : {1, 2, 8, 16, 32, 64})
    if (status s = in_turns("lora_decode_" + std::to_string(sequences),
                            [&](auto& m, step_mode how) { return decode(m, sequences, how); });
        !s)
      return s;
  if (status s = in_turns("lora_prefill_2048", [&](auto& m, step_mode) { return prefill(m, 2048); }); !s) return s;
  if (status s = in_turns("lora_train_2x2048", [&](auto& m, step_mode how) { return train(m, 2, 2048, how); }); !s)
    return s;
  std::printf(", \"choices\": %d}\n", models[1].programs().queue.timer->timed());
  return ok;
}

}  // namespace

int main(int count, char** all) {
  const status s = measure(count > 1 ? std::atoi(all[1]) : 4, count > 2 ? std::atoi(all[2]) : 1024);
  return s ? 0 : (std::fprintf(stderr, "\n%s\n", s.message()), 1);
}
