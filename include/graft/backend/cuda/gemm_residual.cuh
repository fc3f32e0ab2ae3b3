// SPDX-License-Identifier: Apache-2.0
// The residual of a gemm tile, added to the accumulators on their way out. It comes through the ring of stages, behind the
// last step of the tile, so that it is on its way while that is multiplied: 128 x 64 at a time, in the order in which the
// columns are written.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>

namespace graft::cuda {

template <class T, int TileN, class Block> struct tile_residual {
  using shape = typename Block::shape;
  static constexpr bool turns = false;  // but gemm_turn.cuh, in its place

  const Block& block;
  gemm_consumer& c;

  __device__ __forceinline__ void add_to(float (&acc)[TileN / 2], int chunk) const {
    const int place = chunk % shape::more_in_stage, row = c.warp * 16 + c.lane % 16;
    if (place == 0) ptx::barrier_wait(block.full(c.q), c.phase);
    const std::uint32_t from = block.stage(c.q) + place * shape::more + (c.group * 64 + row) * 128;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      std::uint32_t v[4];
      ptx::load_matrix(v, from + (((2 * kk + c.lane / 16) ^ (row & 7)) << 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack<T>(v[i]);
        acc[chunk * 32 + kk * 8 + 2 * i] += two.x, acc[chunk * 32 + kk * 8 + 2 * i + 1] += two.y;
      }
    }
  }
  // Behind a barrier of the warpgroup: the last chunk of a stage releases it.
  __device__ __forceinline__ void was_read(int chunk) const {
    if (chunk % shape::more_in_stage != shape::more_in_stage - 1 && chunk + 1 != TileN / 64) return;
    block.release(c, c.q);
    if (++c.q == shape::stages) c.q = 0, c.phase ^= 1;
  }
};

}  // namespace graft::cuda
