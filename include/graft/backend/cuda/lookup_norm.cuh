// SPDX-License-Identifier: Apache-2.0
// Rows of a table by their number, h, with what a norm behind them takes (stream_norm.cuh): h ⊙ gain, and the sums of
// squares of sixteens of its columns. A step begins with it: the norm of the first block has no launch of its own.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/eights.cuh>
#include <graft/backend/cuda/stream_shape.h>

#include <cmath>

namespace graft::cuda {

// A thread for each sixteen columns.
template <class T> struct looked_up_for_norm {
  const T* table;
  const std::int64_t* ids;
  long long rows;  // of the table
  int columns, tokens;
  T* h;
  norm_behind behind;
  __device__ void operator()(long long i) const {
    const int sixteens = columns / 16, token = static_cast<int>(i) / sixteens,
              first = static_cast<int>(i) % sixteens * 16;
    const cells<float> gain{const_cast<void*>(behind.gain), behind.in_float ? dtype::f32 : dtype_of<T>};
    float v[2][8], g[2][8], squares = 0;
    load_eights(g[0], g[1], gain, first, first + 8);
    const long long row = ids[token];
    // One outside the table gives no number (lookup.cuh).
    const bool inside = row >= 0 && row < rows;
    const cells<float> from{const_cast<T*>(table), dtype_of<T>}, to{h, dtype_of<T>}, scaled{behind.scaled, dtype_of<T>};
    load_eights(v[0], v[1], from, (inside ? row : 0) * columns + first, (inside ? row : 0) * columns + first + 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at = 16 * i + 8 * half;
      if (!inside)
        for (float& e : v[half]) e = NAN;
      store_eight(v[half], to, at);
#pragma unroll
      for (int e = 0; e < 8; ++e) squares = fmaf(v[half][e], v[half][e], squares), v[half][e] *= g[half][e];
      store_eight(v[half], scaled, at);
    }
    behind.squares[i] = squares;
  }
};
// The same of whatever type.
struct look_up_args {
  const void* table;
  const std::int64_t* ids;
  long long rows;
  int columns, tokens;
  void* h;
  norm_behind behind;
};
template <class T> status look_up_for_norm(cudaStream_t stream, const look_up_args& g) {
  const looked_up_for_norm<T> f{static_cast<const T*>(g.table), g.ids,   g.rows, g.columns, g.tokens,
                                static_cast<T*>(g.h),           g.behind};
  return each(stream, static_cast<long long>(g.tokens) * (g.columns / 16), f, "gather for a norm");
}

}  // namespace graft::cuda
