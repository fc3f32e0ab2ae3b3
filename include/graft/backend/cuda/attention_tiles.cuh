// SPDX-License-Identifier: Apache-2.0
// Which tile a thread block of the attention kernels takes next, and which keys its rows look at. Who looks at whom is in
// device memory, so that both are found out there: tiles are sorted by their work, as far as a few of their rows tell it,
// and dealt out as a snake, the largest first; keys are visited in blocks from the last one down, without those that no
// row looks at. No counters and no atomics: the same blocks take the same tiles every time.
#pragma once
#include <graft/backend/cuda/attention_shape.h>
#include <graft/backend/cuda/ptx.cuh>

#include <climits>

namespace graft::cuda {

// `tiles` times `width` pieces of work; those of one tile have the same size.
struct tile_deal {
  int tiles, width, workers, worker;
  std::uint16_t* order;  // this worker's tiles, round by round

  __device__ int position(int round) const {
    return round * workers + (round % 2 == 0 ? worker : workers - 1 - worker);
  }
  __device__ bool sorted() const { return (tiles * width + workers - 1) / workers <= dealt_rounds; }
  __device__ bool take(int round, int& tile, int& column) const {
    const int at = position(round);
    if (at >= tiles * width) return false;
    tile = sorted() ? order[round] : tiles - 1 - at / width;
    column = at % width;
    return true;
  }
  // All threads of the block; `sizes` is shared memory for one number per tile.
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
    ptx::fence_async_shared();  // the sizes' place is filled by copies next
    __syncthreads();
  }
};

// What the first and the last row of a tile look at: enough to sort by.
__device__ __forceinline__ int rows_work(const row_spans& s, int tile) {
  const int a = tile * attention_rows, b = ::min(a + attention_rows, s.rows) - 1;
  return s.end(a) - s.first(a) + s.end(b) - s.first(b);
}

// The blocks of keys that a tile of rows looks at, by one warp: four rows for each lane.
template <int Keys> struct key_walk {
  int low[4], high[4];  // empty: low is the largest number

  __device__ key_walk(const row_spans& s, int row, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i * 32 + lane;
      low[i] = INT_MAX, high[i] = 0;
      if (r >= s.rows) continue;
      const int first = s.first(r), end = s.end(r);
      if (end > first) low[i] = first, high[i] = end;
    }
  }
  // The last block that begins before key `limit` and that a row looks at; -1 where there is none.
  __device__ int before(int limit) const {
    int key = -1;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (low[i] < limit) key = ::max(key, ::min(high[i], limit) - 1);
    key = __reduce_max_sync(~0U, key);
    return key < 0 ? -1 : key / Keys;
  }
  // Whether every row of the tile looks at all of the block.
  __device__ bool whole(int block) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) all = all && low[i] <= block * Keys && high[i] >= (block + 1) * Keys;
    return __all_sync(~0U, all);
  }
};

}  // namespace graft::cuda
