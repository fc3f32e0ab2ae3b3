// SPDX-License-Identifier: Apache-2.0
// The pre slot of stream.cuh: a warpgroup beside the others multiplies x where it lies in shared memory.
#pragma once
#include <graft/backend/cuda/stream.cuh>

namespace graft::cuda {

// x ⊙ pre, in place, before the stage is complete. Each warp takes every fourth stage: all of the first x come at
// once, and nothing is multiplied before they are scaled. A thread has the same eight columns of every fourth token.
template <class T, int Tokens, class Block> __device__ void scale_input(const Block& block) {
  using shape = typename Block::shape;
  const int thread = static_cast<int>(threadIdx.x) - shape::threads, lane = thread % 32, column = lane % 8 * 8;
  constexpr int ahead = 3;  // factors asked for, in stages of this warp
  uint4 factors[ahead];
  auto ask = [&](int i, int k) {
    if (k < block.k_end) factors[i] = __ldg(reinterpret_cast<const uint4*>(block.pre() + k * 64LL + column));
  };
  const int first = block.k_begin + thread / 32;
#pragma unroll
  for (int i = 0; i < ahead; ++i) ask(i, first + 4 * i);
  for (int k0 = first; k0 < block.k_end; k0 += 4 * ahead)
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int k = k0 + 4 * i, q = (k - block.k_begin) % shape::stages;
      if (k >= block.k_end) break;
      ptx::barrier_wait(block.x_here(q), (k - block.k_begin) / shape::stages % 2);
      const std::uint32_t x = block.base + q * shape::stage + shape::w + shape::a;
#pragma unroll
      for (int token = lane / 8; token < Tokens; token += 4) {
        const std::uint32_t at = x + tile_offset(token, column, 128);
        const uint4 v = ptx::load_shared_uint4(at);
        ptx::store_shared(at, make_uint4(times<T>(v.x, factors[i].x), times<T>(v.y, factors[i].y),
                                         times<T>(v.z, factors[i].z), times<T>(v.w, factors[i].w)));
      }
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(block.full(q));
      ask(i, k + 4 * ahead);
    }
}

}  // namespace graft::cuda
