// SPDX-License-Identifier: Apache-2.0
// The cost of changing adapters between two tokens: random bf16 weights in the shape of Llama-3-8B, LoRA of rank 16 on
// all seven projections, captured steps of 16 sequences or SEQUENCES, and 1, 8 and 64 resident adapters. Prints one
// line of JSON, microseconds of whole steps with the work of the host: with one adapter; with another one activated
// before every token; with other adapters for the rows of every token; the first two steps of an adapter, the second of
// which is captured; and prompts of 256 tokens for all sequences, with one adapter and with one for each.
//     bench_gpu_adapter_switching [LAYERS [SEQUENCES [RESIDENT...]]]
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "../../test/support/random_model.h"

using namespace graft;
using engine = graft::gpu::engine<__nv_bfloat16>;
using names = adapter_registry::names;

namespace {

int sequences = 16;
constexpr int width = 4096, inner = 14336, vocabulary = 1024, longest = 1024;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() * 1e6;
}
double median(std::vector<double> all) {
  if (all.empty()) return 0;
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}
// Times of the steps of one generation; before(k) is called before step k.
template <class Before>
result<std::vector<double>> steps(generator<engine>& g, std::span<const names> of_rows, Before before) {
  std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(sequences), {1, 2, 3});
  std::vector<double> took;
  double begun = now();
  status done = before(0);
  const auto made = g.run(
      prompts,
      [&](std::size_t i, std::int64_t) {
        if (static_cast<int>(i) + 1 < sequences || !done) return bool(done);
        took.push_back(now() - begun), begun = now();
        done = before(static_cast<int>(took.size()));
        return bool(done);
      },
      of_rows);
  if (!made) return made.failure();
  if (!done) return done.failure();
  return took;
}
// The median time of prompts.
result<double> prompt_time(causal_lm<engine>& model, std::span<const names> of_rows) {
  constexpr int length = 256;
  generation_settings settings;
  settings.max_new_tokens = 1, settings.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(model, settings, sequences, length + 8);
  if (!g) return g.failure();
  std::vector<std::int64_t> prompt(length);
  for (int i = 0; i < length; ++i) prompt[static_cast<std::size_t>(i)] = 1 + i % 1000;
  const std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(sequences), prompt);
  std::vector<double> took;
  for (int k = 0; k < 7; ++k) {
    const double begun = now();
    const auto made = g->run(
        prompts, [](std::size_t, std::int64_t) { return true; }, of_rows);
    if (!made) return made.failure();
    if (k > 1) took.push_back(now() - begun);
  }
  return median(took);
}
status say(const char* name, int resident, double v) {
  std::printf(", \"%s_%d\": %.1f", name, resident, v);
  return ok;
}

status measure(int layers, const std::vector<int>& counts) {
  const model_config c = graft::test::llama_config(layers, width, inner, vocabulary, longest);
  auto model = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = longest});
  if (!model) return model.failure();
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_string("all-linear")},
                                               {"r", io::json_number(16)},
                                               {"lora_alpha", io::json_number(32)}});
  if (!config) return config.failure();
  std::printf("{\"layers\": %d, \"sequences\": %d", layers, sequences);
  names all;
  // Equally many for each count, because a step of a longer context takes longer.
  const int tokens = 3 * *std::max_element(counts.begin(), counts.end()) + 60;
  for (const int resident : counts) {
    while (static_cast<int>(all.size()) < resident) {
      all.push_back("a" + std::to_string(all.size()));
      if (status s = io::hf::add_adapter(*model, all.back(), *config, all.size()); !s) return s;
    }
    generation_settings settings;
    settings.max_new_tokens = tokens, settings.eos_tokens = no_eos_tokens;
    auto g = generator<engine>::make(*model, settings, sequences, tokens + 8, step_mode::reduce_overhead);
    if (!g) return g.failure();
    const auto after = [](const std::vector<double>& t, std::size_t first) {
      return median({t.begin() + static_cast<std::ptrdiff_t>(std::min(first, t.size())), t.end()});
    };
    const auto one = steps(*g, {}, [&](int k) { return k == 0 ? model->activate({all[0]}) : status(ok); });
    if (!one) return one.failure();
    const auto in_turn = [&](int k) { return model->activate({all[static_cast<std::size_t>(k) % all.size()]}); };
    const auto turns = steps(*g, {}, in_turn);  // the first step is the prompt
    if (!turns) return turns.failure();
    std::vector<double> first, second;
    for (std::size_t k = 1; k < static_cast<std::size_t>(resident); ++k) first.push_back((*turns)[k]);
    for (std::size_t k = 0; k < static_cast<std::size_t>(resident); ++k)
      second.push_back((*turns)[k + static_cast<std::size_t>(resident)]);
    const auto again = steps(*g, {}, in_turn);
    if (!again) return again.failure();
    std::vector<names> of_rows(static_cast<std::size_t>(sequences));
    const auto other_rows = [&](int k) {
      for (int i = 0; i < sequences; ++i)
        of_rows[static_cast<std::size_t>(i)] = {all[static_cast<std::size_t>(i + k) % all.size()]};
      return status(ok);
    };
    const auto rows = steps(*g, of_rows, other_rows);
    if (!rows) return rows.failure();
    const auto same_rows = steps(*g, of_rows, [](int) { return status(ok); });
    if (!same_rows) return same_rows.failure();
    const auto one_prompt = prompt_time(*model, {}), prompts = prompt_time(*model, of_rows);
    if (!one_prompt || !prompts) return fail("the prompts failed");
    static_cast<void>(say("prompts_one_adapter", resident, *one_prompt));
    static_cast<void>(say("prompts", resident, *prompts));
    static_cast<void>(say("step", resident, after(*one, 20)));
    static_cast<void>(say("activated_before_each", resident, after(*again, 1)));
    static_cast<void>(say("multi_lora_step", resident, after(*same_rows, 20)));
    static_cast<void>(say("other_rows_before_each", resident, after(*rows, 20)));
    static_cast<void>(say("first_step", resident, median(first)));
    static_cast<void>(say("captured_step", resident, median(second)));
    std::fflush(stdout);
  }
  std::puts("}");
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to measure"), 0;
  std::vector<int> resident;
  for (int i = 3; i < argc; ++i) resident.push_back(std::atoi(argv[i]));
  if (resident.empty()) resident = {1, 8, 64};
  if (argc > 2) sequences = std::atoi(argv[2]);
  const status s = measure(argc > 1 ? std::atoi(argv[1]) : 4, resident);
  if (!s) std::fprintf(stderr, "bench: %s\n", s.message());
  return s ? 0 : 1;
}
