// SPDX-License-Identifier: Apache-2.0
// Tile scheduler of the persistent attention kernels: which tile a CTA takes next, and which key blocks it visits.
//
// Attention ranges are in device memory, so both are determined on the device. Tiles are sorted by estimated work and
// dealt out in snake order, the largest first. Key blocks are visited from the last one down, without those that no row
// attends to. No counters and no atomics: the same CTAs take the same tiles every time.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/attention/shared_layout.h>

#include <climits>

namespace graft::gpu {

// `tiles` x `width` work items, for example row tiles x heads; the items of one tile cost the same.
struct tile_scheduler {
  int tiles, width, workers, worker;
  std::uint16_t* order;  // this worker's tile in each round, in shared memory

  __device__ int position(int round) const {
    return round * workers + (round % 2 == 0 ? worker : workers - 1 - worker);
  }
  __device__ bool sorted() const { return (tiles * width + workers - 1) / workers <= max_scheduled_tiles; }
  __device__ bool take(int round, int& tile, int& column) const {
    const int at = position(round);
    if (at >= tiles * width) return false;
    tile = sorted() ? order[round] : tiles - 1 - at / width;
    column = at % width;
    return true;
  }
  // Fills `order`. All threads of the CTA call it; `sizes` is shared memory for one int per tile.
  template <class Work> __device__ void sort(int* sizes, const Work& work) const {
    if (!sorted()) return;
    for (int t = static_cast<int>(threadIdx.x); t < tiles; t += static_cast<int>(blockDim.x)) sizes[t] = work(t);
    __syncthreads();
    for (int t = static_cast<int>(threadIdx.x); t < tiles; t += static_cast<int>(blockDim.x)) {
      int rank = 0;
      for (int u = 0; u < tiles; ++u) rank += sizes[u] > sizes[t] || (sizes[u] == sizes[t] && u > t);
      for (int round = rank * width / workers; round <= ((rank + 1) * width - 1) / workers; ++round)
        if (position(round) / width == rank) order[round] = static_cast<std::uint16_t>(t);
    }
    ptx::fence_async_shared();  // TMA copies overwrite `sizes` next
    __syncthreads();
  }
};

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
  // Whether every row of the tile attends to all keys of the block, so that it needs no mask.
  __device__ bool whole(int block) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) all = all && low[i] <= block * Keys && high[i] >= (block + 1) * Keys;
    return __all_sync(~0U, all);
  }
};

}  // namespace graft::gpu
