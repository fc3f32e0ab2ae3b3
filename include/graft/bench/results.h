// SPDX-License-Identifier: Apache-2.0
// The results of a benchmark program: the samples of all repetitions of each contender, and one table of their medians.
#pragma once
#include <graft/bench/samples.h>

#include <cstdio>

namespace graft::bench_detail {

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
