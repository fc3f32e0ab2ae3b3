// SPDX-License-Identifier: Apache-2.0
// RMS norm fused into the quantized skinny GEMMs before and after it, as in skinny/sm90_fused_norm.cuh:
//
//   norm(h) Wᵀ = (h ⊙ gain) Wᵀ / rms(h)      h [tokens, columns]
//
// The GEMM that writes h also stores h ⊙ gain and sums of squares of every 16 columns; the GEMM that reads h ⊙ gain
// multiplies its results by 1 / rms. Sums are added in the same order as in skinny/sm90_fused_norm.cuh, so that
// quantized and unquantized GEMMs on either end give the same bits.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// A warp computes 1 / rms of a token and stores it in shared memory.
__device__ __forceinline__ void find_token_factor(const prologue_norm& norm, int token, int columns, std::uint32_t to) {
  const int lane = threadIdx.x % 32, parts = columns / 16;
  float sum = 0;
#pragma unroll 2
  for (int i = lane * 4; i < parts; i += 128) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(norm.squares + token * parts + i));
    sum += (v.x + v.y) + (v.z + v.w);
  }
#pragma unroll
  for (int other = 1; other < 32; other *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, other);
  const float share = 1 / static_cast<float>(columns);
  if (lane == 0) ptx::store_shared(to + 4 * token, __float_as_uint(1 / sqrtf(fmaf(sum, share, *norm.eps))));
}

// Stores h ⊙ gain of output column `row`, and the sum of squares of the 16 columns that 16 adjacent lanes have.
template <class T>
__device__ __forceinline__ void store_normed(const epilogue_norm& norm, float stored, long long token, int row) {
  const float v = to_float(from_float<T>(stored));
  const float gain =
      norm.in_float ? static_cast<const float*>(norm.gain)[row] : to_float(static_cast<const T*>(norm.gain)[row]);
  static_cast<T*>(norm.scaled)[token + row] = from_float<T>(v * gain);
  const unsigned us = 0xffffU << (threadIdx.x & 16U);
  const float next = __shfl_xor_sync(us, v, 1), even = row % 2 == 0 ? v : next, odd = row % 2 == 0 ? next : v;
  float sum = fmaf(even, even, __fmul_rn(odd, odd));
  sum += __shfl_xor_sync(us, sum, 8);
  sum += __shfl_xor_sync(us, sum, 2);
  sum += __shfl_xor_sync(us, sum, 4);
  if (row % 16 == 0) norm.squares[(token + row) / 16] = sum;
}

}  // namespace graft::gpu
