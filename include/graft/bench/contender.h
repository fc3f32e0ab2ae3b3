// SPDX-License-Identifier: Apache-2.0
// Something to be timed, and how it is: one call at a time, each beside a call of the bare product, so that a machine
// that changes its speed changes it for both. What it costs is known before it runs, so every time is also a share of what
// the machine could do.
//     to_bare = time / time of the bare product        of_floor = max(flops / peak, bytes / bandwidth) / time
#pragma once
#include <benchmark/benchmark.h>
#include <graft/derive/cost.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace graft::bench_detail {

struct contender {
  std::function<double()> seconds;  // one call, or the mean of a few
  cost does;
  double launches = 0;
};
// Made when it is first timed, so that a filter costs no memory. Null: there is none on this machine.
using make_contender = std::function<std::shared_ptr<contender>()>;

inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

inline void measure(benchmark::State& state, const contender& mine, const contender* bare, const device& machine) {
  std::vector<double> own, beside;
  mine.seconds();
  for ([[maybe_unused]] auto sample : state) {
    if (bare != nullptr) beside.push_back(bare->seconds());
    own.push_back(mine.seconds());
    state.SetIterationTime(own.back());
  }
  const double typical = median(own);
  state.counters["flops"] = static_cast<double>(mine.does.flops);
  state.counters["bytes"] = static_cast<double>(mine.does.bytes);
  state.counters["launches"] = mine.launches;
  state.counters["to_bare"] = bare == nullptr ? 1 : typical / median(beside);
  state.counters["of_floor"] = mine.does.floor_seconds(machine) / typical;
}

// NAME/HOW/TOKENS. `bare` may be null: it is the bare product itself.
inline benchmark::internal::Benchmark* enter(const std::string& name, const make_contender& mine,
                                             const make_contender& bare, const std::function<device()>& machine) {
  return benchmark::RegisterBenchmark(name.c_str(),
                                      [=](benchmark::State& state) {
                                        const auto made = mine(), beside = bare ? bare() : nullptr;
                                        if (made == nullptr) return state.SkipWithError("not possible here");
                                        measure(state, *made, beside.get(), machine());
                                      })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace graft::bench_detail
