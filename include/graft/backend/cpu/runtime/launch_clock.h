// SPDX-License-Identifier: Apache-2.0
// The clock of the CPU engine, which records when launches start (backend/timed_launch.h).
#pragma once
#include <graft/backend/timed_launch.h>
#include <graft/core/result.h>
#include <graft/core/sequence.h>

#include <ctime>

namespace graft::cpu {

class launch_clock {
 public:
  // Records the start of launch k of a plan; k equal to the number of launches records the end of the last one.
  void record_launch(const launch_plan& of, int k) { marks_.push({&of, k, now()}); }
  // The times of all launches since the last read.
  result<sequence<timed_launch>> read() {
    sequence<timed_launch> all;
    for (int i = 1; i < marks_.size(); ++i)
      if (marks_[i].of == marks_[i - 1].of && marks_[i].launch == marks_[i - 1].launch + 1)
        all.push({marks_[i].of, marks_[i - 1].launch, marks_[i].at - marks_[i - 1].at});
    marks_.clear();
    return all;
  }

 private:
  struct mark {
    const launch_plan* of = nullptr;
    int launch = 0;
    double at = 0;
  };
  // Seconds of a monotonic clock, like std::chrono::steady_clock but without the cost of <chrono>.
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  sequence<mark> marks_;
};

}  // namespace graft::cpu
