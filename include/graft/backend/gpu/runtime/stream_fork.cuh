// SPDX-License-Identifier: Apache-2.0
// Runs independent work on several streams: they fork from one stream and join it at the end (CUDA events). In a
// captured graph they become parallel branches. Many small kernels, each of which occupies a small part of the device,
// then take the time of the longest branch instead of the sum.
#pragma once
#include <graft/backend/gpu/runtime/engine_memory.cuh>

#include <cstddef>

namespace graft::gpu {

class stream_fork {
 public:
  static constexpr int most = 4;

  // Calls work(k, stream, scratch) for every k below `parts`. Only calls on the same stream share `scratch`.
  template <class Work> status run(cudaStream_t from, std::size_t parts, Work work) {
    const std::size_t used = parts < most ? parts : most;
    status done = begun_.note(from);
    std::size_t forked = 0;
    for (; forked < used && done; forked += done ? 1 : 0) {
      branch& b = all_[forked];
      if (b.own.stream() == nullptr) done = b.own.open();
      if (done) done = begun_.hold(b.own.stream());
    }
    for (std::size_t k = 0; k < parts && done; ++k) {
      branch& b = all_[k % used];
      done = work(k, b.own.stream(), b.scratch);
    }
    // After a failure too: every stream that joined a capture must end in it.
    for (std::size_t k = 0; k < forked; ++k) {
      status joined = all_[k].ended.note(all_[k].own.stream());
      if (joined) joined = all_[k].ended.hold(from);
      if (done) done = joined;
    }
    return done;
  }

 private:
  struct branch {
    owned_stream own;
    buffer scratch;
    stream_event ended;
  };
  branch all_[most];
  stream_event begun_;
};

}  // namespace graft::gpu
