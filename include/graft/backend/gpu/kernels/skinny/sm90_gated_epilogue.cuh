// SPDX-License-Identifier: Apache-2.0
// Gated epilogue (SwiGLU, GeGLU) of the skinny GEMM, y = round(act(x W_gateᵀ)) ⊙ round(act(x W_upᵀ)), each layer with
// its own activation or none.
//
// A tile holds the sums of both layers in different warps, so they are exchanged through shared memory, and a loop over
// the tokens finishes four outputs of a few independent tokens at a time. The loop keeps the code small: unrolled over
// all sums of a thread, activations alone are a hundred kilobytes of instructions, which have to be fetched while W is
// being streamed.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90_epilogue.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// One branch on the activation for all values.
template <activation Act, int Count> __device__ __forceinline__ void activate_each(float4 (&v)[Count]) {
#pragma unroll
  for (float4& four : v) four = activate<Act>(four);
}
template <int Count> __device__ __forceinline__ void activate_each(activation what, float4 (&v)[Count]) {
  switch (what) {
    case activation::none: break;
    case activation::relu: return activate_each<activation::relu>(v);
    case activation::silu: return activate_each<activation::silu>(v);
    case activation::gelu: return activate_each<activation::gelu>(v);
    case activation::gelu_tanh: return activate_each<activation::gelu_tanh>(v);
  }
}

inline constexpr int gate_barrier = 3;  // named barrier: sums are in shared memory

// Finishes the tile after gate_barrier, by all epilogue_threads.
template <class T, int Tokens, class Block> __device__ __forceinline__ void finish_gated(const Block& block) {
  constexpr int half = Block::half, pitch = sum_pitch(2 * half);
  static_assert(half % 4 == 0);
  ptx::named_barrier(gate_barrier, Block::epilogue_threads);
  const int n = block.seg.n;
  const bool is_aligned = n % 4 == 0 && reinterpret_cast<std::uintptr_t>(block.seg.y) % 8 == 0;
  constexpr int tokens_per_thread = Tokens < 16 ? 1 : Tokens < 64 ? 2 : 4;  // tokens per thread
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < (block.g.m + tokens_per_thread - 1) / tokens_per_thread * (half / 4);
       i += Block::epilogue_threads) {
    const int token = i / (half / 4) * tokens_per_thread, column = i % (half / 4) * 4;
    float4 y[tokens_per_thread];
#pragma unroll
    for (float4& four : y) four = make_float4(1, 1, 1, 1);
#pragma unroll 1
    for (int layer = 0; layer < 2; ++layer) {
      float4 v[tokens_per_thread];
#pragma unroll
      for (int t = 0; t < tokens_per_thread; ++t)
        v[t] = ptx::load_shared_float4(block.base + 4 * ((token + t) * pitch + layer * half + column));
      activate_each(block.g.segment[layer].act, v);
#pragma unroll
      for (int t = 0; t < tokens_per_thread; ++t) {
        const float2 low = unpack<T>(pack<T>(v[t].x, v[t].y)), high = unpack<T>(pack<T>(v[t].z, v[t].w));
        y[t].x *= low.x, y[t].y *= low.y, y[t].z *= high.x, y[t].w *= high.y;
      }
    }
    const int row = block.row0 + column;
    auto* to = reinterpret_cast<std::uint32_t*>(static_cast<T*>(block.seg.y) + static_cast<long long>(token) * n + row);
#pragma unroll
    for (int t = 0; t < tokens_per_thread; ++t, to += n / 2) {
      if (token + t >= block.g.m) break;
      const uint2 four = make_uint2(pack<T>(y[t].x, y[t].y), pack<T>(y[t].z, y[t].w));
      if (row < n && is_aligned) *reinterpret_cast<uint2*>(to) = four;
      if (row < n && !is_aligned) to[0] = four.x;
      if (row + 2 < n && !is_aligned) to[1] = four.y;
    }
  }
}

template <class T, int Tokens, class Block>
__device__ __forceinline__ void store_gated(const Block& block, const typename Block::sums& acc) {
  sums_to_smem(block, acc);
  finish_gated<T, Tokens>(block);
}

}  // namespace graft::gpu
