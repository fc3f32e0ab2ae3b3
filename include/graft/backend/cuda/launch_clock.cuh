// SPDX-License-Identifier: Apache-2.0
// The clock of the GPU's engine (backend/timed_launch.h): events between the launches. Two events with nothing between
// them are some time apart already, which is measured and taken off.
#pragma once
#include <graft/backend/cuda/error.h>
#include <graft/backend/timed_launch.h>
#include <graft/core/few_numbers.h>
#include <graft/core/sequence.h>

#include <vector>

namespace graft::cuda {

class launch_clock {
 public:
  launch_clock() = default;
  launch_clock(const launch_clock&) = delete;
  launch_clock& operator=(const launch_clock&) = delete;
  ~launch_clock() {
    for (const noted& n : notes_) static_cast<void>(cudaEventDestroy(n.at));
  }
  // Launch k of a plan is next; k is the number of its launches where the last one was queued.
  status note(cudaStream_t stream, const plan& of, int k) {
    noted n{&of, k, nullptr};
    if (used_ == notes_.size()) {
      if (status s = check(cudaEventCreate(&n.at), "making an event"); !s) return s;
      notes_.push(n);
    } else {
      n.at = notes_[used_].at, notes_[used_] = n;
    }
    return check(cudaEventRecord(notes_[used_++].at, stream), "noting a launch");
  }
  // All launches since it was read last; waits for them.
  result<sequence<timed_launch>> read() {
    sequence<timed_launch> all;
    sequence<double> empty;
    if (used_ > 0)
      if (status s = check(cudaEventSynchronize(notes_[used_ - 1].at), "waiting for launches"); !s) return s.failure();
    for (int i = 1; i < used_; ++i) {
      float milliseconds = 0;
      if (status s = check(cudaEventElapsedTime(&milliseconds, notes_[i - 1].at, notes_[i].at), "timing a launch"); !s)
        return s.failure();
      if (notes_[i].launch == 0)  // from the end of a plan to the beginning of the next one nothing runs
        empty.push(1e-3 * milliseconds);
      else if (notes_[i].of == notes_[i - 1].of)
        all.push({notes_[i].of, notes_[i - 1].launch, 1e-3 * milliseconds});
    }
    used_ = 0;
    put_in_order(empty.begin(), empty.end());
    const double apart = empty.empty() ? 0 : empty[empty.size() / 4];
    for (timed_launch& t : all) t.seconds = larger_of(0.0, t.seconds - apart);
    return all;
  }

 private:
  struct noted {
    const plan* of;
    int launch;
    cudaEvent_t at;
  };
  sequence<noted> notes_;
  int used_ = 0;
};

}  // namespace graft::cuda
