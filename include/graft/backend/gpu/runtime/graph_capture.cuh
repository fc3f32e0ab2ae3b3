// SPDX-License-Identifier: Apache-2.0
// CUDA graph capture and replay of one piece of work. The first run executes the work directly, so that everything it
// allocates exists; the second run captures it; later runs replay it. A new version, which states that addresses have
// changed, discards the graph and begins with a direct run.
#pragma once
#include <graft/backend/gpu/arch/error.h>

#include <cstdint>
#include <utility>

namespace graft::gpu {

class captured_graph {
 public:
  captured_graph() = default;
  captured_graph(captured_graph&& o) noexcept : replay_(std::exchange(o.replay_, nullptr)), version_(o.version_) {}
  captured_graph& operator=(captured_graph&& o) noexcept {
    std::swap(replay_, o.replay_), std::swap(version_, o.version_);
    return *this;
  }
  ~captured_graph() { drop(); }

  template <class Work> status run(cudaStream_t stream, std::uint64_t version, Work work) {
    if (version != version_) {
      drop(), version_ = version;
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
  std::uint64_t version_ = 0;
};

}  // namespace graft::gpu
