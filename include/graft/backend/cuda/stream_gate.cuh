// SPDX-License-Identifier: Apache-2.0
// The end of a launch of the stream family whose result is a product of two layers, element by element (gate and up):
//     y = round(act(x Gᵀ)) ⊙ round(act(x Uᵀ))
// A tile has the sums of both, in different warps. They meet in shared memory, in floats; a loop over the tokens that
// there are finishes four outputs of a few tokens at a time, which do not wait for each other. Written out for every sum
// a thread holds, activations alone were a hundred kilobytes of instructions, which have to be fetched while memory is
// busy with weights.
#pragma once
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>

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

template <class T, int Tokens, class Block>
__device__ __forceinline__ void store_gated(const Block& block, const typename Block::sums& acc) {
  constexpr int half = Block::half, pitch = 2 * half + 4;  // floats of a token: lanes write to different banks
  static_assert(half % 4 == 0 && pitch % 16 == 4);
  if (Block::shape::pitch == 0) ptx::named_barrier(1, 128);  // nobody reads the stages any more
  const int warp = threadIdx.x / 32;
  const std::uint32_t own = block.base + 4 * (threadIdx.x % 4 * 2 * pitch + warp * 16 + threadIdx.x % 32 / 4);
#pragma unroll
  for (int j = 0; j < Tokens / 8; ++j) {
    if (j >= block.eights()) break;
#pragma unroll
    for (int b = 0; b < Block::with_rows; ++b)
      if (b * 4 + warp < 2 * Block::half_units)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::store_shared(own + 4 * ((8 * j + i % 2) * pitch + b * 64 + i / 2 * 8),
                            __float_as_uint(acc[b][4 * j + i]));
  }
  ptx::named_barrier(1, 128);
  const int n = block.seg.n;
  constexpr int some = Tokens < 16 ? 1 : Tokens < 64 ? 2 : 4;  // tokens
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < (block.g.m + some - 1) / some * (half / 4); i += 128) {
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
      if (row < n) to[0] = pack<T>(y[t].x, y[t].y);
      if (row + 2 < n) to[1] = pack<T>(y[t].z, y[t].w);
    }
  }
}

}  // namespace graft::cuda
