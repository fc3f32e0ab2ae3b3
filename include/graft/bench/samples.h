// SPDX-License-Identifier: Apache-2.0
// Timing samples of a contender and of the bare product, and whether they can be trusted. While a call has the cores
// that it needs, at least one thread is busy until it returns, so its CPU time is at least its wall time. If it is
// less, the program waited while others ran, and a ratio of such times says nothing about the layer, however little it
// varies.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace graft::bench_detail {

// One timed call in seconds: wall time, and CPU time of all threads of the process. A GPU's samples are timed by CUDA
// events and leave `processor` zero.
struct sample {
  double wall = 0, processor = 0;
};

inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

// The medians of one contender's samples, and the fastest sample.
struct typical_sample {
  double wall = 0, processor = 0, fastest = 0;
};
inline typical_sample typical(const std::vector<sample>& all) {
  std::vector<double> wall, processor;
  for (const sample& s : all) wall.push_back(s.wall), processor.push_back(s.processor);
  return {median(wall), median(processor), wall.empty() ? 0 : *std::min_element(wall.begin(), wall.end())};
}

struct judgement {
  double seconds = 0, to_bare = 1;
  std::string disturbed{};  // why the times cannot be trusted; empty if they can
};

inline constexpr double least_busy = 0.9;     // CPU time / wall time: below it the program waited for a core
inline constexpr double most_unsteady = 1.5;  // median / fastest: above it most calls were slowed down
inline constexpr double max_spread = 1.5;     // between to_bare by wall time and by CPU time

inline std::string with_two_digits(double v) {
  const auto hundredths = static_cast<long long>(v * 100 + 0.5);
  const std::string rest = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + (rest.size() < 2 ? ".0" : ".") + rest;
}

// Judges samples that were taken in turn. Without samples of a bare product the contender is that product.
inline judgement judge(const std::vector<sample>& own, const std::vector<sample>& bare) {
  const typical_sample mine = typical(own), reference = typical(bare);
  judgement j{mine.wall, bare.empty() || reference.wall <= 0 ? 1 : mine.wall / reference.wall, {}};
  const auto look_at = [&](const typical_sample& t, const char* who) {
    if (!j.disturbed.empty() || t.wall <= 0) return;
    if (t.processor > 0 && t.processor < least_busy * t.wall)
      j.disturbed = std::string(who) + " had a processor for " + with_two_digits(t.processor / t.wall) + " of its time";
    else if (t.wall > most_unsteady * t.fastest)
      j.disturbed =
          std::string(who) + " usually took " + with_two_digits(t.wall / t.fastest) + " times its quickest call";
  };
  look_at(mine, "the layer"), look_at(reference, "the bare product");
  if (!j.disturbed.empty() || bare.empty() || mine.processor <= 0 || reference.processor <= 0) return j;
  const double by_processor = mine.processor / reference.processor;
  if (std::max(j.to_bare / by_processor, by_processor / j.to_bare) > max_spread)
    j.disturbed = "to_bare is " + with_two_digits(j.to_bare) + " by wall time and " + with_two_digits(by_processor) +
                  " by processor time";
  return j;
}

}  // namespace graft::bench_detail
