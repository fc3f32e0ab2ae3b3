// SPDX-License-Identifier: Apache-2.0
// Work of which no part reads what another one writes, side by side: a few streams that begin where a stream is, and for
// which it then waits. A captured step has them as branches of its graph. Many small kernels, each of which leaves most of
// the device idle, take the time of the longest branch instead of the time of all.
#pragma once
#include <graft/backend/cuda/engine_memory.cuh>

#include <cstddef>

namespace graft::cuda {

class branches {
 public:
  static constexpr int most = 4;

  // Part k on one of the streams: work(k, stream, scratch), with memory that only parts on the same stream use.
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
    for (std::size_t b = 0; b < used; ++b) {  // also behind a failure: a stream that is captured must come back
      if (status s = all_[b].ended.note(all_[b].own.stream()); !s) return s;
      if (status s = all_[b].ended.hold(from); !s) return s;
    }
    return done;
  }

 private:
  struct branch {
    own_stream own;
    buffer scratch;
    moment ended;
  };
  branch all_[most];
  moment begun_;
};

}  // namespace graft::cuda
