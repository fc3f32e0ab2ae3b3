// SPDX-License-Identifier: Apache-2.0
// Shrink of a low-rank branch on the tensor cores, per warp: partial sums of U = x Aᵀ over a range of columns, for 16
// rows of A. Used by the quantized skinny GEMM (low_rank_branch.cuh) and the shrink launch (skinny/shrink.cuh).
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/quantized/dequantize_registers.cuh>
#include <graft/backend/gpu/tile/adapter_args.h>

namespace graft::gpu {

namespace quantized_detail {
// Address of eight columns of a row of A, which is packed in swizzled tiles of [rank][64] (adapter_args::a_tiles).
__device__ __forceinline__ const uint4* a_at(const adapter_args& adapter, int row, int chunk, int quad) {
  const long long tile = static_cast<long long>(chunk / 2) * adapter.rank + row;
  return reinterpret_cast<const uint4*>(static_cast<const char*>(adapter.a_tiles) + tile * 128 +
                                        (((chunk % 2 * 4 + quad) ^ (row % 8)) << 4));
}
__device__ __forceinline__ uint4 load_a8(const adapter_args& adapter, int row, int chunk, int quad) {
  return __ldg(a_at(adapter, row, chunk, quad));
}
// sums += A xᵀ for 16 rows of A and NTiles * 8 tokens, over chunks [begin, end) of 32 columns. A lane has rows `rows`
// and `rows` + 8 of A and token `row` of every 8. The previous launch may write x but not A: A is loaded early.
template <class T, int NTiles, int AtOnce, class X>
__device__ __forceinline__ void shrink(float (&sums)[NTiles][4], const adapter_args& adapter, int rows, int row,
                                       int quad, const X& in, int begin, int end) {
  for (int first = begin; first < end; first += AtOnce) {
    uint4 a[AtOnce][2], v[AtOnce][NTiles];
#pragma unroll
    for (int c = 0; c < AtOnce; ++c)
      if (first + c < end)
        a[c][0] = load_a8(adapter, rows, first + c, quad), a[c][1] = load_a8(adapter, rows + 8, first + c, quad);
    ptx::wait_for_dependency();
#pragma unroll
    for (int c = 0; c < AtOnce; ++c)
#pragma unroll
      for (int n = 0; n < NTiles; ++n) {
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
      for (int n = 0; n < NTiles; ++n) {
        ptx::mma_m16n8k16_unordered<T>(sums[n], a0, v[c][n].x, v[c][n].y);
        ptx::mma_m16n8k16_unordered<T>(sums[n], a1, v[c][n].z, v[c][n].w);
      }
    }
  }
}
}  // namespace quantized_detail

}  // namespace graft::gpu
