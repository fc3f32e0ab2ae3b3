// SPDX-License-Identifier: Apache-2.0
// The clock of the CPU's engine (backend/timed_launch.h).
#pragma once
#include <graft/backend/timed_launch.h>
#include <graft/core/result.h>
#include <graft/core/sequence.h>

#include <ctime>

namespace graft::cpu {

class launch_clock {
 public:
  // Launch k of a plan is next; k is the number of its launches where the last one has run.
  void note(const plan& of, int k) { notes_.push({&of, k, now()}); }
  // All launches since it was read last.
  result<sequence<timed_launch>> read() {
    sequence<timed_launch> all;
    for (int i = 1; i < notes_.size(); ++i)
      if (notes_[i].of == notes_[i - 1].of && notes_[i].launch == notes_[i - 1].launch + 1)
        all.push({notes_[i].of, notes_[i - 1].launch, notes_[i].at - notes_[i - 1].at});
    notes_.clear();
    return all;
  }

 private:
  struct noted {
    const plan* of = nullptr;
    int launch = 0;
    double at = 0;
  };
  // In seconds, of a clock that is never set: std::chrono::steady_clock without <chrono>.
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  sequence<noted> notes_;
};

}  // namespace graft::cpu
