// SPDX-License-Identifier: Apache-2.0
// Split-K reduction of the skinny GEMM: the blocks of a cluster hold partial sums of the same rows and tokens, and each
// finishes a share of them.
//
// Partial sums that another block finishes are written to its shared memory (st.async over DSMEM, counted on its
// mailbox) and added there in the order of the splits; a sum of two needs no order. With up to
// eight tokens the shares are units of 16 rows, each the sums of one warp (reduce_rows). With more tokens that would
// let half of the warps send while the other half finish, so two blocks take alternate groups of eight tokens of all
// rows (reduce_tokens).
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>

namespace graft::gpu {

// Every block finishes `owned` units of 16 rows for all tokens. Afterwards `acc` holds the sums of these units; the
// others are unchanged.
template <class Block>
__device__ __forceinline__ void reduce_rows(const Block& block, typename Block::accumulators& acc) {
  using shape = typename Block::shape;
  const int warp = threadIdx.x / 32, split = block.split;
  // Shared memory address, in the block that owns a unit, of the partial sums from block `from`: 512 bytes per eight
  // tokens.
  const auto receive_buffer = [&](int unit, int owner, int from) {
    const int sender = from < owner ? from : from - 1;
    return block.base + shape::receive_buffer +
           (sender * shape::owned + unit - owner * shape::owned) * Block::token_tile_count * 512 +
           (threadIdx.x % 32) * 16;
  };
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b) {
    const int unit = b * 4 + warp, owner = unit / shape::owned;
    if (unit >= shape::units || owner == split) continue;
    const std::uint32_t to = receive_buffer(unit, owner, split);
#pragma unroll
    for (int j = 0; j < Block::token_tile_count; ++j)
      if (j < block.token_tiles())
        block.partials().send(to + j * 512, owner,
                              make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]));
  }
  block.partials().wait();
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b) {
    const int unit = b * 4 + warp;
    if (unit >= shape::units || unit / shape::owned != split) continue;
#pragma unroll
    for (int j = 0; j < Block::token_tile_count; ++j) {
      if (j >= block.token_tiles()) break;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < Block::all_splits; ++s) {
        float4 partial = make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]);
        if (s != split) partial = ptx::load_shared_float4(receive_buffer(unit, split, s) + j * 512);
        add_to(sum, partial);
      }
      acc[b][4 * j] = sum.x, acc[b][4 * j + 1] = sum.y, acc[b][4 * j + 2] = sum.z, acc[b][4 * j + 3] = sum.w;
    }
  }
}

// Two blocks: of every two groups of eight tokens each block sends one and finishes the other.
template <class Block>
__device__ __forceinline__ void reduce_tokens(const Block& block, const typename Block::accumulators& acc,
                                              typename Block::sums& mine) {
  using shape = typename Block::shape;
  constexpr int own = Block::finished / 8;
  const int warp = threadIdx.x / 32;
  const std::uint32_t box = block.base + shape::receive_buffer + warp * own * 512 + threadIdx.x % 32 * 16;
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b)
#pragma unroll
    for (int j = 0; j < own; ++j) {
      float other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float even = acc[b][8 * j + i], odd = acc[b][8 * j + 4 + i];
        mine[b][4 * j + i] = block.split == 0 ? even : odd, other[i] = block.split == 0 ? odd : even;
      }
      if (b * 4 + warp < shape::units)
        block.partials().send(box + (b * 4 * own + j) * 512, block.split ^ 1,
                              make_float4(other[0], other[1], other[2], other[3]));
    }
  block.partials().wait();
#pragma unroll
  for (int b = 0; b < Block::row_blocks; ++b) {
    if (b * 4 + warp >= shape::units) continue;
#pragma unroll
    for (int j = 0; j < own; ++j) {
      const float4 other = ptx::load_shared_float4(box + (b * 4 * own + j) * 512);
      mine[b][4 * j] += other.x, mine[b][4 * j + 1] += other.y;
      mine[b][4 * j + 2] += other.z, mine[b][4 * j + 3] += other.w;
    }
  }
}

}  // namespace graft::gpu
