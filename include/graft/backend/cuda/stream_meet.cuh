// SPDX-License-Identifier: Apache-2.0
// Where the parts of the inner axis of a stream product meet: thread blocks of a cluster have sums of the same rows and
// tokens, and each finishes a share of them. What another block finishes is written into its shared memory, and added there
// in the order of the parts, whoever finishes: a sum of two does not depend on theirs.
//
// With up to eight tokens a block's share is a unit of 16 rows, the sums of a warp. With more, half of the warps would send
// and the others finish, one after the other: there two blocks take every other eight of the tokens, of all rows.
#pragma once
#include <graft/backend/cuda/ptx.cuh>

namespace graft::cuda {

// Every block finishes some of the units of rows. `acc` has the sums there, and what it was elsewhere.
template <class Block>
__device__ __forceinline__ void exchange_rows(const Block& block, typename Block::accumulators& acc) {
  using shape = typename Block::shape;
  const int warp = threadIdx.x / 32, split = block.split;
  // Where the part of block `from` of a unit lies, in the block that finishes the unit: 512 bytes for eight tokens.
  const auto inbox = [&](int unit, int owner, int from) {
    const int sender = from < owner ? from : from - 1;
    return block.base + shape::inbox + (sender * shape::owned + unit - owner * shape::owned) * Block::all_eights * 512 +
           (threadIdx.x % 32) * 16;
  };
#pragma unroll
  for (int b = 0; b < Block::with_rows; ++b) {
    const int unit = b * 4 + warp, owner = unit / shape::owned;
    if (unit >= shape::units || owner == split) continue;
    const std::uint32_t to = inbox(unit, owner, split);
#pragma unroll
    for (int j = 0; j < Block::all_eights; ++j)
      if (j < block.eights())
        ptx::store_at(to + j * 512, block.received(), owner,
                      make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]));
  }
  ptx::barrier_wait(block.received(), 0);
#pragma unroll
  for (int b = 0; b < Block::with_rows; ++b) {
    const int unit = b * 4 + warp;
    if (unit >= shape::units || unit / shape::owned != split) continue;
#pragma unroll
    for (int j = 0; j < Block::all_eights; ++j) {
      if (j >= block.eights()) break;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < Block::all_splits; ++s) {
        float4 part = make_float4(acc[b][4 * j], acc[b][4 * j + 1], acc[b][4 * j + 2], acc[b][4 * j + 3]);
        if (s != split) part = ptx::load_shared_float4(inbox(unit, split, s) + j * 512);
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
      acc[b][4 * j] = sum.x, acc[b][4 * j + 1] = sum.y, acc[b][4 * j + 2] = sum.z, acc[b][4 * j + 3] = sum.w;
    }
  }
}

// Two blocks: of two eights of tokens one goes to the other block, and one is finished here.
template <class Block>
__device__ __forceinline__ void exchange_tokens(const Block& block, const typename Block::accumulators& acc,
                                                typename Block::sums& mine) {
  using shape = typename Block::shape;
  constexpr int own = Block::finished / 8;
  const int warp = threadIdx.x / 32;
  const std::uint32_t box = block.base + shape::inbox + warp * own * 512 + threadIdx.x % 32 * 16;
#pragma unroll
  for (int b = 0; b < Block::with_rows; ++b)
#pragma unroll
    for (int j = 0; j < own; ++j) {
      float other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float even = acc[b][8 * j + i], odd = acc[b][8 * j + 4 + i];
        mine[b][4 * j + i] = block.split == 0 ? even : odd, other[i] = block.split == 0 ? odd : even;
      }
      if (b * 4 + warp < shape::units)
        ptx::store_at(box + (b * 4 * own + j) * 512, block.received(), block.split ^ 1,
                      make_float4(other[0], other[1], other[2], other[3]));
    }
  ptx::barrier_wait(block.received(), 0);
#pragma unroll
  for (int b = 0; b < Block::with_rows; ++b) {
    if (b * 4 + warp >= shape::units) continue;
#pragma unroll
    for (int j = 0; j < own; ++j) {
      const float4 other = ptx::load_shared_float4(box + (b * 4 * own + j) * 512);
      mine[b][4 * j] += other.x, mine[b][4 * j + 1] += other.y;
      mine[b][4 * j + 2] += other.z, mine[b][4 * j + 3] += other.w;
    }
  }
}

}  // namespace graft::cuda
