// SPDX-License-Identifier: Apache-2.0
// A token step of a model in words: the launches of every program that its blocks run, each timed by itself. Floor is what a
// launch must move, at the speed of memory; expected is that with what its kernels cost beside it; measured is the median
// over all blocks and steps.
#pragma once
#include <graft/backend/timed_launch.h>
#include <graft/model/generate.h>
#include <graft/plan/explain.h>
#include <graft/plan/launch_price.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

namespace graft {

struct explained_step {
  int sequences = 1, context = 16;  // tokens in the cache of each
};

namespace detail {
using launch_times = std::map<std::pair<const plan*, int>, std::vector<double>>;

template <class Engine> result<launch_times> time_steps(causal_lm<Engine>& model, const explained_step& at) {
  constexpr int steps = 8;
  typename Engine::launch_clock clock;
  generation_settings settings;
  settings.new_tokens = steps;
  auto g = generator<Engine>::make(model, settings, at.sequences, at.context + steps);
  if (!g) return g.failure();
  const std::vector<std::int64_t> prompt(static_cast<std::size_t>(at.context), 1);
  const std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(at.sequences), prompt);
  const auto made = g->run(prompts, [&](std::size_t, std::int64_t) {
    model.programs().queue.clock = &clock;  // from the second step on
    return true;
  });
  model.programs().queue.clock = nullptr;
  if (!made) return made.failure();
  auto noted = clock.read();
  if (!noted) return noted.failure();
  launch_times all;
  for (const timed_launch& t : *noted) all[{t.of, t.launch}].push_back(t.seconds);
  return all;
}
// How the weights lie that a program multiplies with: codes where those of some layer are.
inline encoding stored_in(const model_weights& weights, const graph& g) {
  for (id i = 0; i < g.size; ++i) {
    if (g[i].what != op::base) continue;
    const std::string leaf = g.name(i).c_str();
    for (const auto& [name, v] : weights.tensors)
      if (v.beside != nullptr && (name == leaf || name.ends_with("." + leaf))) return v.beside->how;
  }
  return {};
}
inline void say_microseconds(text& t, const char* what, double seconds) {
  char number[32];
  static_cast<void>(std::snprintf(number, sizeof number, "%.1f us", seconds * 1e6));
  t << what << number;
}
inline void say_times(text& t, const launch_price& price, const target& to, std::vector<double> took) {
  const bool known = price.floor_seconds(to) > 0;
  if (known) say_microseconds(t, "   floor ", price.floor_seconds(to));
  if (known) say_microseconds(t, ", expected ", price.expected_seconds(to));
  if (took.empty()) return;
  std::nth_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2), took.end());
  say_microseconds(t, known ? ", measured " : "   measured ", took[took.size() / 2]);
}
}  // namespace detail

// Lines go to a sink, any callable that takes a `const text&`. Generates a few tokens.
template <class Engine, class Sink>
status explain_step(causal_lm<Engine>& model, const explained_step& at, Sink&& line) {
  const result<detail::launch_times> times = detail::time_steps(model, at);
  if (!times) return times.failure();
  for (int k = 0; k < model.programs().count(); ++k) {
    const block_program<Engine>& p = model.programs()[k];
    const graph& g = p.value();
    const plan& launches = p.launches();
    const size_values& sizes = p.runs().this_call().sizes;
    const encoding stored = detail::stored_in(model.weights(), g);
    bool begins_normed = false;
    for (int before = 0; before < model.programs().count(); ++before) {
      const block_program<Engine>& b = model.programs()[before];
      begins_normed =
          begins_normed || takes_first_norm(b.value(), b.launches(), b.runs().this_call().sizes, g, launches, sizes,
                                            Engine::keeps, detail::stored_in(model.weights(), b.value()), stored);
    }
    char key[32];
    static_cast<void>(std::snprintf(key, sizeof key, "%016llx", p.key()));
    text head;
    head << "program " << k << ", key " << static_cast<const char*>(key);
    line(head);
    const int kernels = kernels_of(g, launches, sizes, Engine::keeps, stored) - (begins_normed ? 1 : 0);
    explain_graph(g, launches, "forward", kernels, nullptr, line, [&](text& t, int launch) {
      if (begins_normed && launches.launches[launch].rows == launches.norm_of_input) t << "   inside the launch before";
      const auto took = times->find({&launches, launch});
      detail::say_times(t, price_of(g, launches, launch, sizes, Engine::keeps, at.context, stored), launches.to,
                        took == times->end() ? std::vector<double>{} : took->second);
    });
  }
  return ok;
}

}  // namespace graft
