// SPDX-License-Identifier: Apache-2.0
// Explains a decode step of a model as text: the launches of every program that its blocks run, each timed by itself.
//     floor      bytes and flops of the launch at the rates of the target (roofline)
//     expected   the floor plus the launch overhead of its kernels
//     measured   the median over all blocks and steps
#pragma once
#include <graft/backend/timed_launch.h>
#include <graft/model/generate.h>
#include <graft/plan/explain.h>
#include <graft/plan/launch_cost.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

namespace graft {

struct step_shape {
  int sequences = 1, context = 16;       // context: prompt tokens of each sequence
  static constexpr int timed_steps = 8;  // tokens generated after the prompt
};

namespace detail {
using launch_times = std::map<std::pair<const launch_plan*, int>, std::vector<double>>;

template <class Engine> result<launch_times> time_steps(causal_lm<Engine>& model, const step_shape& at) {
  constexpr int steps = step_shape::timed_steps;
  typename Engine::launch_clock clock;
  generation_settings settings;
  settings.max_new_tokens = steps, settings.eos_tokens = no_eos_tokens;
  auto g = generator<Engine>::make(model, settings, at.sequences, at.context + steps);
  if (!g) return g.failure();
  const std::vector<std::int64_t> prompt(static_cast<std::size_t>(at.context), 1);
  const std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(at.sequences), prompt);
  const auto made = g->run(prompts, [&](std::size_t, std::int64_t) {
    model.programs().queue.clock = &clock;  // decode steps are timed, the prefill is not
    return true;
  });
  model.programs().queue.clock = nullptr;
  if (!made) return made.failure();
  auto times = clock.read();
  if (!times) return times.failure();
  launch_times all;
  for (const timed_launch& t : *times) all[{t.of, t.launch}].push_back(t.seconds);
  return all;
}
// Returns the quantization format of the weights that a program reads, from the first one that is quantized.
inline quant_format weight_format_of(const model_weights& weights, const graph& g) {
  for (id i = 0; i < g.size; ++i) {
    if (g[i].what != op::base) continue;
    const std::string leaf = g.name(i).c_str();
    for (const auto& [name, v] : weights.tensors)
      if (v.quant != nullptr && (name == leaf || name.ends_with("." + leaf))) return v.quant->format;
  }
  return {};
}
inline void append_microseconds(text& t, const char* what, double seconds) {
  char number[32];
  static_cast<void>(std::snprintf(number, sizeof number, "%.1f us", seconds * 1e6));
  t << what << number;
}
inline void append_times(text& t, const launch_estimate& price, const target& to, std::vector<double> took) {
  const bool known = price.roofline_seconds(to) > 0;
  if (known) append_microseconds(t, "   floor ", price.roofline_seconds(to));
  if (known) append_microseconds(t, ", expected ", price.expected_seconds(to));
  if (took.empty()) return;
  std::nth_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2), took.end());
  append_microseconds(t, known ? ", measured " : "   measured ", took[took.size() / 2]);
}
}  // namespace detail

// Generates a few tokens and writes lines to a sink, any callable that takes a `const text&`.
template <class Engine, class Sink> status explain_step(causal_lm<Engine>& model, const step_shape& at, Sink&& line) {
  const result<detail::launch_times> times = detail::time_steps(model, at);
  if (!times) return times.failure();
  for (int k = 0; k < model.programs().count(); ++k) {
    const program<Engine>& p = model.programs()[k];
    const graph& g = p.value();
    const launch_plan& launches = p.launches();
    const size_values& sizes = p.this_call().sizes;
    const quant_format stored = detail::weight_format_of(model.weights(), g);
    char key[32];
    static_cast<void>(std::snprintf(key, sizeof key, "%016llx", p.key()));
    text head;
    head << "program " << k << ", key " << static_cast<const char*>(key);
    line(head);
    const int kernels = kernel_count(g, launches, sizes, Engine::storage_type, stored);
    explain_graph(g, launches, "forward", kernels, nullptr, line, [&](text& t, int launch) {
      const auto took = times->find({&launches, launch});
      detail::append_times(t, estimate_launch(g, launches, launch, sizes, Engine::storage_type, at.context, stored),
                           launches.to, took == times->end() ? std::vector<double>{} : took->second);
    });
  }
  return ok;
}

}  // namespace graft
