// SPDX-License-Identifier: Apache-2.0
// A benchmark measurement: calls are timed in turn with calls of the bare product, so that a change of the machine's
// speed affects both. Flops and bytes are known beforehand, so every time is also compared with the machine's roofline.
//     to_bare = time / time of the bare product        of_floor = max(flops / peak, bytes / bandwidth) / time
#pragma once
#include <benchmark/benchmark.h>
#include <graft/bench/results.h>
#include <graft/derive/cost.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace graft::bench_detail {

struct measurement {
  std::function<sample()> time_call;  // one call, or the mean of several
  cost does;
  double launches = 0;
};
// Called when a benchmark is first timed, so that filtered ones allocate nothing. Null: not possible on this machine.
using make_measurement = std::function<std::shared_ptr<measurement>()>;

inline void measure(benchmark::State& state, const std::string& name, const measurement& mine, const measurement* bare,
                    const device& machine) {
  std::vector<sample> ours, baseline;
  mine.time_call();
  for ([[maybe_unused]] auto one : state) {
    if (bare != nullptr) baseline.push_back(bare->time_call());
    ours.push_back(mine.time_call());
    state.SetIterationTime(ours.back().wall);
  }
  const judgement found = judge(ours, baseline);
  const double roofline_seconds = mine.does.roofline_seconds(machine);
  state.counters["flops"] = static_cast<double>(mine.does.flops);
  state.counters["bytes"] = static_cast<double>(mine.does.bytes);
  state.counters["launches"] = mine.launches;
  state.counters["to_bare"] = found.to_bare;
  state.counters["of_floor"] = roofline_seconds / found.seconds;
  state.counters["disturbed"] = found.disturbed.empty() ? 0 : 1;
  if (!found.disturbed.empty()) state.SetLabel("disturbed: " + found.disturbed);
  all_results().add(name, {static_cast<double>(mine.does.flops), mine.launches, roofline_seconds}, ours, baseline);
}

// Registers a benchmark, NAME/MODE/TOKENS. `bare` is null for the bare product itself.
inline benchmark::internal::Benchmark* register_benchmark(const std::string& name, const make_measurement& mine,
                                                          const make_measurement& bare,
                                                          const std::function<device()>& machine) {
  return benchmark::RegisterBenchmark(name.c_str(),
                                      [=](benchmark::State& state) {
                                        const auto made = mine(), baseline = bare ? bare() : nullptr;
                                        if (made == nullptr) return state.SkipWithError("not possible here");
                                        measure(state, name, *made, baseline.get(), machine());
                                      })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace graft::bench_detail
