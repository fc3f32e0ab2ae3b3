// SPDX-License-Identifier: Apache-2.0
// The results of a benchmark program: the samples of all repetitions of each contender, and one table of their medians.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace graft::bench_detail {

// Timing samples of a contender and of the bare product, and whether they can be trusted. While a call has the cores
// that it needs, at least one thread is busy until it returns, so its CPU time is at least its wall time. If it is
// less, the program waited while others ran, and a ratio of such times says nothing about the layer, however little it
// varies.

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

struct contender_cost {
  double flops = 0, launches = 0, roofline_seconds = 0;
};

class results {
 public:
  void add(const std::string& name, const contender_cost& does, const std::vector<sample>& own,
           const std::vector<sample>& bare) {
    auto at = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.name == name; });
    if (at == entries_.end()) at = entries_.insert(at, entry{name, does, {}, {}});
    at->own.insert(at->own.end(), own.begin(), own.end());
    at->bare.insert(at->bare.end(), bare.begin(), bare.end());
  }
  bool empty() const { return entries_.empty(); }

  // Returns one line per contender, sorted by name. Ratios of disturbed times are in parentheses, with the reason.
  std::string table() const {
    std::size_t width = 10;
    std::vector<const entry*> sorted;
    for (const entry& e : entries_) sorted.push_back(&e), width = std::max(width, e.name.size());
    std::sort(sorted.begin(), sorted.end(), [](const entry* a, const entry* b) { return a->name < b->name; });
    std::string all = line(width, "medians", "us", "to_bare", "of_floor", "Mflop", "launches", "");
    bool disturbed = false;
    for (const entry* e : sorted) {
      const judgement j = judge(e->own, e->bare);
      const bool doubtful = !j.disturbed.empty();
      const std::string ratio = with_two_digits(j.to_bare);
      all += line(width, e->name, with_two_digits(1e6 * j.seconds), doubtful ? "(" + ratio + ")" : ratio,
                  with_two_digits(j.seconds > 0 ? e->does.roofline_seconds / j.seconds : 0),
                  with_two_digits(1e-6 * e->does.flops), std::to_string(static_cast<long long>(e->does.launches)),
                  doubtful ? "  disturbed: " + j.disturbed : "");
      disturbed = disturbed || doubtful;
    }
    if (disturbed)
      all +=
          "Disturbed times say nothing about a layer: other programs use this machine. Stop them, or set GRAFT_BUSY=1 "
          "and OMP_NUM_THREADS=1 to count processor time instead.\n";
    return all;
  }

 private:
  struct entry {
    std::string name;
    contender_cost does;
    std::vector<sample> own, bare;
  };
  static std::string line(std::size_t width, const std::string& name, const std::string& us, const std::string& to_bare,
                          const std::string& of_floor, const std::string& flops, const std::string& launches,
                          const std::string& note) {
    const auto right = [](const std::string& s, std::size_t n) {
      return std::string(s.size() < n ? n - s.size() : 0, ' ') + s;
    };
    return name + std::string(width - std::min(width, name.size()), ' ') + right(us, 12) + right(to_bare, 10) +
           right(of_floor, 10) + right(flops, 12) + right(launches, 10) + note + "\n";
  }
  std::vector<entry> entries_;
};

// Returns the results of this program, which the functions that register and run benchmarks share.
inline results& all_results() {
  static results all;
  return all;
}

}  // namespace graft::bench_detail
