// SPDX-License-Identifier: Apache-2.0
// Device time without the host's: calls are captured in a CUDA graph, and its replay is timed by CUDA events.
#pragma once
#include <cuda_runtime.h>
#include <graft/backend/gpu/arch/error.h>

#include <functional>

namespace graft::gpu::bench_detail {

using enqueue_function = std::function<status(cudaStream_t)>;

class replay {
 public:
  replay() = default;
  replay(const replay&) = delete;
  replay& operator=(const replay&) = delete;
  ~replay() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_), cudaEventDestroy(begin_), cudaEventDestroy(end_);
  }
  status capture(cudaStream_t stream, int calls, const enqueue_function& enqueue) {
    stream_ = stream, calls_ = calls;
    cudaGraph_t graph = nullptr;
    if (status s = check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing"); !s) return s;
    const status queued = enqueue(stream);
    if (status s = check(cudaStreamEndCapture(stream, &graph), "the end of a capture"); !s || !queued)
      return queued ? s : queued;
    status made = check(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a graph");
    cudaGraphDestroy(graph);
    if (made) made = check(cudaEventCreate(&begin_), "an event");
    if (made) made = check(cudaEventCreate(&end_), "an event");
    return made;
  }
  void untimed() const { static_cast<void>(cudaGraphLaunch(exec_, stream_)); }
  // Returns seconds per call; 0 if the device reports an error.
  double seconds() const {
    cudaEventRecord(begin_, stream_), untimed(), cudaEventRecord(end_, stream_);
    float ms = 0;
    if (cudaEventSynchronize(end_) != cudaSuccess || cudaEventElapsedTime(&ms, begin_, end_) != cudaSuccess) return 0;
    return static_cast<double>(ms) * 1e-3 / calls_;
  }

 private:
  cudaStream_t stream_ = nullptr;
  int calls_ = 1;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace graft::gpu::bench_detail
