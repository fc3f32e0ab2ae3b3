// SPDX-License-Identifier: Apache-2.0
// Work that is captured once as a CUDA graph and then replayed. The first time it runs as it is, so that everything it
// needs is there; the second time it is captured. A change of the stamp, which says where things lie, begins anew.
#pragma once
#include <graft/backend/cuda/error.h>

#include <cstdint>
#include <utility>

namespace graft::cuda {

class captured_work {
 public:
  captured_work() = default;
  captured_work(captured_work&& o) noexcept : replay_(std::exchange(o.replay_, nullptr)), stamp_(o.stamp_) {}
  captured_work& operator=(captured_work&& o) noexcept {
    std::swap(replay_, o.replay_), std::swap(stamp_, o.stamp_);
    return *this;
  }
  ~captured_work() { drop(); }

  template <class Work> status run(cudaStream_t stream, std::uint64_t stamp, Work work) {
    if (stamp != stamp_) {
      drop(), stamp_ = stamp;
      return work();
    }
    if (replay_ == nullptr)
      if (status s = capture(stream, work); !s) return s;
    return check(cudaGraphLaunch(replay_, stream), "replaying a captured step");
  }
  bool captured() const { return replay_ != nullptr; }

 private:
  template <class Work> status capture(cudaStream_t stream, Work& work) {
    if (status s = check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a step"); !s)
      return s;
    const status done = work();
    cudaGraph_t graph = nullptr;
    const status ended = check(cudaStreamEndCapture(stream, &graph), "capturing a step");
    if (!done || !ended) {
      if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
      return done ? ended : done;
    }
    const status made = check(cudaGraphInstantiate(&replay_, graph, 0), "making a captured step ready");
    static_cast<void>(cudaGraphDestroy(graph));
    return made;
  }
  void drop() {
    if (replay_ != nullptr) static_cast<void>(cudaGraphExecDestroy(std::exchange(replay_, nullptr)));
  }

  cudaGraphExec_t replay_ = nullptr;
  std::uint64_t stamp_ = 0;
};

}  // namespace graft::cuda
