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
    if (status s = begun_.note(from); !s) return s;
    for (std::size_t b = 0; b < used; ++b) {
      if (all_[b].own.stream() == nullptr)
        if (status s = all_[b].own.open(); !s) return s;
      if (status s = begun_.hold(all_[b].own.stream()); !s) return s;
    }
    status done = ok;
    for (std::size_t k = 0; k < parts && done; ++k) {
      branch& b = all_[k % used];
      done = work(k, b.own.stream(), b.scratch);
    }
    for (std::size_t b = 0; b < used; ++b) {  // after a failure too: every stream that joined a capture must end in it
      if (status s = all_[b].ended.note(all_[b].own.stream()); !s) return s;
      if (status s = all_[b].ended.hold(from); !s) return s;
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
