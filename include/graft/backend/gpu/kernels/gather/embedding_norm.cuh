// SPDX-License-Identifier: Apache-2.0
// Embedding lookup fused with the first half of the RMS norm that reads it (kernels/skinny/sm90_epilogue.cuh): gathers
// the rows h of a table, and stores h ⊙ gain and the sums of squares over every 16 columns. A decode step begins with
// it, so that the norm of the first block needs no launch of its own.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/vector8.cuh>

#include <cmath>

namespace graft::gpu {

// One thread handles 16 columns of one token.
template <class T> struct gather_norm_functor {
  const T* table;
  const std::int64_t* ids;
  long long rows;  // rows of the table
  int columns, tokens;
  T* h;
  epilogue_norm out_norm;
  __device__ void operator()(long long i) const {
    const int sixteens = columns / 16, token = static_cast<int>(i) / sixteens,
              first = static_cast<int>(i) % sixteens * 16;
    const element_ptr<float> gain{const_cast<void*>(out_norm.gain), out_norm.in_float ? dtype::f32 : dtype_of<T>};
    float v[2][8], g[2][8], squares = 0;
    load_vec8_pair(g[0], g[1], gain, first, first + 8);
    const long long row = ids[token];
    // An id outside the table yields NaN, as in gather_scatter.cuh.
    const bool inside = row >= 0 && row < rows;
    const element_ptr<float> from{const_cast<T*>(table), dtype_of<T>}, to{h, dtype_of<T>},
        scaled{out_norm.scaled, dtype_of<T>};
    load_vec8_pair(v[0], v[1], from, (inside ? row : 0) * columns + first, (inside ? row : 0) * columns + first + 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at = 16 * i + 8 * half;
      if (!inside)
        for (float& e : v[half]) e = NAN;
      store_vec8(v[half], to, at);
#pragma unroll
      for (int e = 0; e < 8; ++e) squares = fmaf(v[half][e], v[half][e], squares), v[half][e] *= g[half][e];
      store_vec8(v[half], scaled, at);
    }
    out_norm.squares[i] = squares;
  }
};
// The arguments of gather_for_norm with the element type erased.
struct gather_norm_args {
  const void* table;
  const std::int64_t* ids;
  long long rows;
  int columns, tokens;
  void* h;
  epilogue_norm out_norm;
};
template <class T> status gather_for_norm(cudaStream_t stream, const gather_norm_args& g) {
  const gather_norm_functor<T> f{static_cast<const T*>(g.table), g.ids,     g.rows, g.columns, g.tokens,
                                 static_cast<T*>(g.h),           g.out_norm};
  return each(stream, static_cast<long long>(g.tokens) * (g.columns / 16), f, "gather for a norm");
}

}  // namespace graft::gpu
