// SPDX-License-Identifier: Apache-2.0
// Autotuning against the heuristic (step_mode::max_autotune): two models in the shape of Llama-3-8B with random bf16
// weights and LoRA on all seven projections, timed in turns. Prints one line of JSON: microseconds of token steps over
// a context of 1024, of a prompt and of a training step, by heuristic and timed, and how long timing took.
//     bench_gpu_autotune [LAYERS [VOCABULARY]]
#include <cstdlib>

#include "model_calls.cuh"

using namespace graft;
using namespace graft::model_calls;

namespace {

// Prints the smallest of three medians of both models, and the time of the calls that timed launches.
status measure(int layers, int vocabulary) {
  const model_config c = graft::test::llama_config(layers, 4096, 14336, vocabulary, 4096);
  std::vector<causal_lm<engine>> models;
  for (int k = 0; k < 2; ++k) {
    auto made = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = 4096});
    if (!made) return made.failure();
    models.push_back(std::move(*made));
    auto lora = adapter_named(models.back(), "lora");
    if (!lora) return lora.failure();
    if (status s = models.back().set_adapters(*lora); !s) return s;
  }
  if (status s = models[1].enable_autotuning("/tmp/graft_bench_choices.txt"); !s) return s;
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
                            [&](auto& m, step_mode how) {
                              return decode(m, {sequences, 1024}, how);
                            });
        !s)
      return s;
  if (status s = in_turns("lora_prefill_2048", [&](auto& m, step_mode) { return prefill(m, 2048); }); !s) return s;
  if (status s = in_turns("lora_train_2x2048", [&](auto& m, step_mode how) { return train(m, 2, 2048, how); }); !s)
    return s;
  std::printf(", \"choices\": %d}\n", models[1].programs().queue.tuner->timed());
  return ok;
}

}  // namespace

int main(int count, char** all) {
  const status s = measure(count > 1 ? std::atoi(all[1]) : 4, count > 2 ? std::atoi(all[2]) : 1024);
  return s ? 0 : (std::fprintf(stderr, "\n%s\n", s.message()), 1);
}
