// SPDX-License-Identifier: Apache-2.0
// A part of S = x Aᵀ by a warp: a few columns of sixteen rows of A, on the tensor cores.
#pragma once
#include <graft/backend/cuda/code_pairs.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/slot.h>

namespace graft::cuda {

namespace code_detail {
// Eight columns of a row of A, which lies in tiles of [rank][64], swizzled.
__device__ __forceinline__ const uint4* a_at(const adapter_slot& slot, int row, int chunk, int quad) {
  const long long tile = static_cast<long long>(chunk / 2) * slot.rank + row;
  return reinterpret_cast<const uint4*>(static_cast<const char*>(slot.a_tiles) + tile * 128 +
                                        (((chunk % 2 * 4 + quad) ^ (row % 8)) << 4));
}
__device__ __forceinline__ uint4 a_piece(const adapter_slot& slot, int row, int chunk, int quad) {
  return __ldg(a_at(slot, row, chunk, quad));
}
// Sixteen rows of A times the tokens of `in`, over chunks of 32 columns. A lane has `row` and the one eight further, counted
// from where `rows` begins for it, and tokens of the same numbers. x is written by the launch ahead, A is not.
template <class T, int Eights, int AtOnce, class X>
__device__ __forceinline__ void shrink(float (&sums)[Eights][4], const adapter_slot& slot, int rows, int row, int quad,
                                       const X& in, int begin, int end) {
  for (int first = begin; first < end; first += AtOnce) {
    uint4 a[AtOnce][2], v[AtOnce][Eights];
#pragma unroll
    for (int c = 0; c < AtOnce; ++c)
      if (first + c < end)
        a[c][0] = a_piece(slot, rows, first + c, quad), a[c][1] = a_piece(slot, rows + 8, first + c, quad);
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int c = 0; c < AtOnce; ++c)
#pragma unroll
      for (int n = 0; n < Eights; ++n) {
        const int token = n * 8 + row;
        v[c][n] = make_uint4(0, 0, 0, 0);
        if (first + c < end && token < in.m())
          v[c][n] = *reinterpret_cast<const uint4*>(in.x() + static_cast<long long>(token) * in.k() + (first + c) * 32 +
                                                    quad * 8);
      }
#pragma unroll
    for (int c = 0; c < AtOnce; ++c) {
      if (first + c >= end) break;
      const std::uint32_t a0[4] = {a[c][0].x, a[c][1].x, a[c][0].y, a[c][1].y},
                          a1[4] = {a[c][0].z, a[c][1].z, a[c][0].w, a[c][1].w};
#pragma unroll
      for (int n = 0; n < Eights; ++n) {
        multiply<T>(sums[n], a0, v[c][n].x, v[c][n].y);
        multiply<T>(sums[n], a1, v[c][n].z, v[c][n].w);
      }
    }
  }
}
}  // namespace code_detail

}  // namespace graft::cuda
