// SPDX-License-Identifier: Apache-2.0
// RMSNorm between two skinny GEMMs, fused into both: norm(h) Wᵀ = (h ⊙ gain) Wᵀ / rms(h).
//
// The launch that writes h [tokens, columns] also stores h ⊙ gain, and per 16 columns the sum of squares of h as it is
// stored, which depends on neither the tile shape nor the other tokens. The launch that reads h ⊙ gain computes 1 / rms
// of each token in a spare warp while W streams, and multiplies its sums with it. The low-rank branch and the column
// scales are linear, so the factor commutes with them. The lanes that hold values of one token are those of the
// accumulator fragment, several lanes apart, so that they are added by shuffles; cub::WarpReduce adds neighboring lanes.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

inline constexpr int norm_barrier = 2;  // named barrier: 1 / rms of all tokens is in shared memory

// ---- the launch that writes h ---------------------------------------------------------------------------------------
template <class T, class Block>
__device__ __forceinline__ void load_gains(const Block& block, typename Block::gains& to) {
  const int lane = threadIdx.x % 32;
  const epilogue_norm& norm = block.g.out_norm;
  ptx::wait_for_dependency();
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.row0 + (b * 4 + threadIdx.x / 32) * 16 + lane / 8 * 2 + 8 * h;
      if (row >= block.seg.n || b * 4 + threadIdx.x / 32 >= Block::shape::units) continue;
      to[b][h] = norm.in_float
                     ? *reinterpret_cast<const float2*>(static_cast<const float*>(norm.gain) + row)
                     : unpack<T>(*reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(norm.gain) + row));
    }
}
// Stores h ⊙ gain and the sum of squares of 16 columns of a token: two pairs in each of four lanes, added in fixed
// order.
struct squares_of_rows {
  float sum = 0;
  template <class T>
  __device__ __forceinline__ void store(const epilogue_norm& norm, float2 gain, int h, long long at,
                                        std::uint32_t pair) {
    const float2 v = unpack<T>(pair);
    if (at >= 0)
      *reinterpret_cast<std::uint32_t*>(static_cast<T*>(norm.scaled) + at) = pack<T>(v.x * gain.x, v.y * gain.y);
    const float both = fmaf(v.x, v.x, __fmul_rn(v.y, v.y));
    sum = h == 0 ? both : sum + both;
    if (h == 0) return;
    sum += __shfl_xor_sync(0xffffffffU, sum, 8);
    sum += __shfl_xor_sync(0xffffffffU, sum, 16);
    if (threadIdx.x % 32 < 8 && at >= 0) norm.squares[at / 16] = sum;
  }
};

// ---- launches that read h ⊙ gain ------------------------------------------------------------------------------------
// Adds `sum` over the lanes of a warp, by recursive halving of the tokens until each lane has one. Every sum is formed
// in the order of a full butterfly reduction.
template <int Other, int Left, int Tokens> __device__ __forceinline__ void add_lanes(float (&sum)[Tokens], int lane) {
  if constexpr (Other < 32 && Left == 1) {
    sum[0] += __shfl_xor_sync(0xffffffffU, sum[0], Other);
    add_lanes<2 * Other, 1>(sum, lane);
  } else if constexpr (Other < 32) {
    constexpr int half = Left / 2;
    const bool upper = (lane & Other) != 0;
#pragma unroll
    for (int token = 0; token < half; ++token) {
      const float got = __shfl_xor_sync(0xffffffffU, upper ? sum[token] : sum[token + half], Other);
      sum[token] = (upper ? sum[token + half] : sum[token]) + got;
    }
    add_lanes<2 * Other, half>(sum, lane);
  }
}
// 1 / rms of every token, by one warp after the preceding kernel has finished. The order of additions of a token does
// not depend on the number of tokens.
template <int Tokens>
__device__ __forceinline__ void find_token_factors(const prologue_norm& norm, int m, int columns, std::uint32_t to) {
  const int lane = threadIdx.x % 32, parts = columns / 16;
  float sum[Tokens] = {};
  ptx::wait_for_dependency();
  const float eps = *norm.eps, inv_columns = 1 / static_cast<float>(columns);
#pragma unroll 2
  for (int i = lane * 4; i < parts; i += 128)
#pragma unroll
    for (int token = 0; token < Tokens; ++token) {  // no branch, so that all loads are in flight together
      const float4 v = __ldcg(reinterpret_cast<const float4*>(norm.squares + (token < m ? token : m - 1) * parts + i));
      sum[token] += (v.x + v.y) + (v.z + v.w);
    }
  add_lanes<1, Tokens>(sum, lane);
  int token = 0;
#pragma unroll
  for (int other = 1, left = Tokens / 2; left > 0; other *= 2, left /= 2) token += (lane & other) != 0 ? left : 0;
  if (lane < Tokens) ptx::store_shared(to + 4 * token, __float_as_uint(1 / sqrtf(fmaf(sum[0], inv_columns, eps))));
  ptx::named_arrive(norm_barrier, 160);
}
template <class Block> __device__ __forceinline__ void normalize_tokens(const Block& block, typename Block::sums& acc) {
  ptx::named_barrier(norm_barrier, 160);
#pragma unroll
  for (int j = 0; j < Block::finished / 8; ++j) {
    const float2 factor =
        ptx::load_shared_float2(block.token_factors() + 4 * (8 * block.token_tile_of(j) + threadIdx.x % 4 * 2));
#pragma unroll
    for (int b = 0; b < Block::row_blocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[b][4 * j + i] *= (i & 1) != 0 ? factor.y : factor.x;
  }
}

}  // namespace graft::gpu
