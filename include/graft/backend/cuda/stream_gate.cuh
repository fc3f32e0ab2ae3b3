// SPDX-License-Identifier: Apache-2.0
// The end of a launch of the stream family whose result is a product of two layers, element by element (gate and up):
//     y = round(act(x Gᵀ)) ⊙ round(act(x Uᵀ))
// A tile has the sums of both, in different warps. They meet in shared memory, in floats; a loop over the tokens that
// there are finishes four outputs at a time. Written out for every sum a thread holds, activations alone were a hundred
// kilobytes of instructions, which have to be fetched while memory is busy with weights.
#pragma once
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>

namespace graft::cuda {

template <class T, int Tokens, class Block>
__device__ __forceinline__ void store_gated(const Block& block, const typename Block::accumulators& acc) {
  constexpr int half = Block::half, pitch = 2 * half + 4;  // floats of a token: lanes write to different banks
  static_assert(half % 4 == 0 && pitch % 16 == 4);
  if (Block::shape::pitch == 0) ptx::named_barrier(1, 128);  // nobody reads the stages any more
#pragma unroll
  for (int e = 0; e < Block::held; ++e) {
    const int row = block.row_of(e) - block.row0;
    if (row < 2 * half && block.token_of(e) / 8 < block.eights())
      ptx::store_shared(block.base + 4 * (block.token_of(e) * pitch + row),
                        __float_as_uint(acc[e / (Tokens / 2)][e % (Tokens / 2)]));
  }
  ptx::named_barrier(1, 128);
  const int n = block.seg.n;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < block.g.m * (half / 4); i += 128) {
    const int token = i / (half / 4), column = i % (half / 4) * 4;
    float4 y = make_float4(1, 1, 1, 1);
#pragma unroll 1
    for (int layer = 0; layer < 2; ++layer) {
      const float4 v = activate(block.g.segment[layer].act,
                                ptx::load_shared_float4(block.base + 4 * (token * pitch + layer * half + column)));
      const float2 low = unpack<T>(pack<T>(v.x, v.y)), high = unpack<T>(pack<T>(v.z, v.w));
      y.x *= low.x, y.y *= low.y, y.z *= high.x, y.w *= high.y;
    }
    const int row = block.row0 + column;
    auto* const to =
        reinterpret_cast<std::uint32_t*>(static_cast<T*>(block.seg.y) + static_cast<long long>(token) * n + row);
    if (row < n) to[0] = pack<T>(y.x, y.y);
    if (row + 2 < n) to[1] = pack<T>(y.z, y.w);
  }
}

}  // namespace graft::cuda
