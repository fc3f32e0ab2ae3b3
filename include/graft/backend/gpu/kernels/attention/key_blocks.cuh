// SPDX-License-Identifier: Apache-2.0
// Which key blocks a tile of query rows attends to, and how much work that is. Attention ranges are in device memory,
// so both are determined on the device. Key blocks are visited from the last one down, without those that no row
// attends to. tile/tile_scheduler.cuh deals out the tiles.
#pragma once
#include <graft/backend/gpu/kernels/attention/shared_layout.h>
#include <graft/backend/gpu/tile/tile_scheduler.cuh>

#include <climits>

namespace graft::gpu {

// Estimated work of a tile: the keys of its first and last rows.
__device__ __forceinline__ int tile_work(const attention_ranges& s, int tile) {
  const int a = tile * attention_tile_rows, b = ::min(a + attention_tile_rows, s.rows) - 1;
  return s.end(a) - s.first(a) + s.end(b) - s.first(b);
}

// The key blocks that a tile of 128 rows attends to; one warp calls every member, four rows per lane.
template <int Keys> struct kv_block_iterator {
  int low[4], high[4];  // an empty range has low = INT_MAX and high = 0

  __device__ kv_block_iterator(const attention_ranges& s, int row, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i * 32 + lane;
      low[i] = INT_MAX, high[i] = 0;
      if (r >= s.rows) continue;
      const int first = s.first(r), end = s.end(r);
      if (end > first) low[i] = first, high[i] = end;
    }
  }
  // The last block that begins before key `limit` and that a row attends to; -1 where there is none.
  __device__ int before(int limit) const {
    int key = -1;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (low[i] < limit) key = ::max(key, ::min(high[i], limit) - 1);
    key = __reduce_max_sync(~0U, key);
    return key < 0 ? -1 : key / Keys;
  }
  // Returns true if every row of the tile attends to all keys of the block, so that it needs no mask.
  __device__ bool whole(int block) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) all = all && low[i] <= block * Keys && high[i] >= (block + 1) * Keys;
    return __all_sync(~0U, all);
  }
};

}  // namespace graft::gpu
