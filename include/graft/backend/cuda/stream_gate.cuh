// SPDX-License-Identifier: Apache-2.0
// The end of a launch of the stream family whose result is a product of two layers, element by element (gate and up):
//     y = round(act(x Gᵀ)) ⊙ round(act(x Uᵀ))
// A tile has the sums of both, in different warps. They meet in shared memory (stream_store.cuh); a loop over the tokens
// that there are finishes four outputs of a few tokens at a time, which do not wait for each other. Written out for every sum
// a thread holds, activations alone were a hundred kilobytes of instructions, which have to be fetched while memory is
// busy with weights.
#pragma once
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/stream_store.cuh>

namespace graft::cuda {

// One jump for all of them.
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

inline constexpr int gate_is_there = 3;  // the barrier between the warps that have sums and all that finish them

// By all of them, when the sums are there.
template <class T, int Tokens, class Block> __device__ __forceinline__ void finish_gated(const Block& block) {
  constexpr int half = Block::half, pitch = sum_pitch(2 * half);
  static_assert(half % 4 == 0);
  ptx::named_barrier(gate_is_there, Block::enders);
  const int n = block.seg.n;
  const bool whole = n % 4 == 0 && reinterpret_cast<std::uintptr_t>(block.seg.y) % 8 == 0;
  constexpr int some = Tokens < 16 ? 1 : Tokens < 64 ? 2 : 4;  // tokens
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < (block.g.m + some - 1) / some * (half / 4); i += Block::enders) {
    const int token = i / (half / 4) * some, column = i % (half / 4) * 4;
    float4 y[some];
#pragma unroll
    for (float4& four : y) four = make_float4(1, 1, 1, 1);
#pragma unroll 1
    for (int layer = 0; layer < 2; ++layer) {
      float4 v[some];
#pragma unroll
      for (int t = 0; t < some; ++t)
        v[t] = ptx::load_shared_float4(block.base + 4 * ((token + t) * pitch + layer * half + column));
      activate_each(block.g.segment[layer].act, v);
#pragma unroll
      for (int t = 0; t < some; ++t) {
        const float2 low = unpack<T>(pack<T>(v[t].x, v[t].y)), high = unpack<T>(pack<T>(v[t].z, v[t].w));
        y[t].x *= low.x, y[t].y *= low.y, y[t].z *= high.x, y[t].w *= high.y;
      }
    }
    const int row = block.row0 + column;
    auto* to = reinterpret_cast<std::uint32_t*>(static_cast<T*>(block.seg.y) + static_cast<long long>(token) * n + row);
#pragma unroll
    for (int t = 0; t < some; ++t, to += n / 2) {
      if (token + t >= block.g.m) break;
      const uint2 four = make_uint2(pack<T>(y[t].x, y[t].y), pack<T>(y[t].z, y[t].w));
      if (row < n && whole) *reinterpret_cast<uint2*>(to) = four;
      if (row < n && !whole) to[0] = four.x;
      if (row + 2 < n && !whole) to[1] = four.y;
    }
  }
}

template <class T, int Tokens, class Block>
__device__ __forceinline__ void store_gated(const Block& block, const typename Block::sums& acc) {
  share_sums(block, acc);
  finish_gated<T, Tokens>(block);
}

}  // namespace graft::cuda
