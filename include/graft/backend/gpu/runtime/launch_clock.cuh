// SPDX-License-Identifier: Apache-2.0
// Times each launch of a plan on the GPU by CUDA events that are recorded between the launches (timed_launch.h). Two
// events without work between them are already some time apart; this overhead is estimated and subtracted.
#pragma once
#include <graft/backend/gpu/arch/error.h>
#include <graft/backend/timed_launch.h>
#include <graft/core/algorithm.h>
#include <graft/core/sequence.h>

#include <vector>

namespace graft::gpu {

class launch_clock {
 public:
  launch_clock() = default;
  launch_clock(const launch_clock&) = delete;
  launch_clock& operator=(const launch_clock&) = delete;
  ~launch_clock() {
    for (const noted& n : records_) static_cast<void>(cudaEventDestroy(n.at));
  }
  // Records an event before launch k of the plan `of`, or after its last launch if k is the number of its launches.
  status note(cudaStream_t stream, const launch_plan& of, int k) {
    noted n{&of, k, nullptr};
    if (used_ == records_.size()) {
      if (status s = check(cudaEventCreate(&n.at), "making an event"); !s) return s;
      records_.push(n);
    } else {
      n.at = records_[used_].at, records_[used_] = n;
    }
    return check(cudaEventRecord(records_[used_++].at, stream), "noting a launch");
  }
  // Waits for the recorded launches and returns the time of each since the previous read().
  result<sequence<timed_launch>> read() {
    sequence<timed_launch> all;
    sequence<double> empty;
    if (used_ > 0)
      if (status s = check(cudaEventSynchronize(records_[used_ - 1].at), "waiting for launches"); !s)
        return s.failure();
    for (int i = 1; i < used_; ++i) {
      float milliseconds = 0;
      if (status s = check(cudaEventElapsedTime(&milliseconds, records_[i - 1].at, records_[i].at), "timing a launch");
          !s)
        return s.failure();
      if (records_[i].launch == 0)  // nothing runs between the end of one plan and the start of the next
        empty.push(1e-3 * milliseconds);
      else if (records_[i].of == records_[i - 1].of)
        all.push({records_[i].of, records_[i - 1].launch, 1e-3 * milliseconds});
    }
    used_ = 0;
    insertion_sort(empty.begin(), empty.end());
    const double apart = empty.empty() ? 0 : empty[empty.size() / 4];
    for (timed_launch& t : all) t.seconds = max_of(0.0, t.seconds - apart);
    return all;
  }

 private:
  struct noted {
    const launch_plan* of;
    int launch;
    cudaEvent_t at;
  };
  sequence<noted> records_;
  int used_ = 0;
};

}  // namespace graft::gpu
