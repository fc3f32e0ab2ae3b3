// SPDX-License-Identifier: Apache-2.0
// Tile schedulers of persistent kernels: which tile a CTA takes next. All are computed from the sizes and the
// number of blocks, without counters and atomics: the same launch gives the same tiles to the same blocks.
//
//   grouped_raster     (tile_order.h) tiles of equal cost, ordered for reuse of both operands in the L2 cache (GEMM)
//   longest_first_scheduler      tiles whose cost is known on the device only: sorted by cost and dealt out in snake order, the
//                     largest first (attention)
//   stream_k_scheduler    one list of all tiles, cut into chunks of equal cost that may begin and end within a row
//                     (split-KV decode; stream-K of Osama et al. 2023, arXiv 2301.03598). Its scan over two rows per
//                     lane is ten shuffles; cub::WarpScan would be the same ones, with CUB's headers in every program.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/tile/tile_order.h>

#include <cstdint>

namespace graft::gpu {

// `tiles` x `width` work items, for example row tiles x heads; the items of one tile cost the same.
struct longest_first_scheduler {
  int tiles, width, workers, worker;
  std::uint16_t* order;  // this worker's tile in each round, in shared memory

  __device__ int position(int round) const {
    return round * workers + (round % 2 == 0 ? worker : workers - 1 - worker);
  }
  __device__ bool sorted() const { return (tiles * width + workers - 1) / workers <= max_longest_first_tiles; }
  __device__ bool take(int round, int& tile, int& column) const {
    const int at = position(round);
    if (at >= tiles * width) return false;
    tile = sorted() ? order[round] : tiles - 1 - at / width;
    column = at % width;
    return true;
  }
  // Fills `order`. All threads of the block call it; `sizes` is shared memory for one int per tile.
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

// Up to 64 rows with `columns` equal columns each; a column of row r costs cost(r). List order: row by row, column by
// column within a row. A whole warp calls every member: each lane holds two rows. Chunk costs differ by at most one,
// except that a cut at most snap_distance after the beginning of a column moves to that beginning, so that no chunk
// ends with so small a part of a column.
class stream_k_scheduler {
 public:
  static constexpr int snap_distance = 2;

  // `cost` of rows that do not exist is not read. There are at most total cost / min_chunk_cost chunks.
  __device__ stream_k_scheduler(const int (&cost)[2], int rows, int columns, int blocks, int min_chunk_cost)
      : cost_{cost[0], cost[1]} {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_one = half * 32 + lane < rows;
      const int own = is_one ? cost_[half] * columns : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int previous = __shfl_up_sync(~0U, sum, step);
        if (lane >= step) sum += previous;
      }
      before_[half] = is_one ? all_ + sum - own : 0x7fffffff;
      all_ += __shfl_sync(~0U, sum, 31);
    }
    chunk_count_ = ::min(blocks, ::max(1, all_ / min_chunk_cost));
    chunk_cost_ = all_ / chunk_count_, longer_chunk_count_ = all_ % chunk_count_;
  }
  __device__ int chunks() const { return chunk_count_; }

  // List position where chunk k begins; begin(chunks()) is the end of the list.
  __device__ int begin(int k) const {
    const int at = k * chunk_cost_ + ::min(k, longer_chunk_count_);
    if (k == chunk_count_) return all_;
    const int distance = at - find(at).begin;
    return distance <= snap_distance ? at - distance : at;
  }
  // The column of a row that contains a list position, with the positions where it begins and how much it costs.
  struct item {
    int row, column, begin, cost;
  };
  __device__ item find(int at) const {
    const int row = __popc(__ballot_sync(~0U, before_[0] <= at)) + __popc(__ballot_sync(~0U, before_[1] <= at)) - 1;
    const int cost = of_row(cost_, row), in_row = at - of_row(before_, row), column = in_row / cost;
    return {row, column, at - in_row % cost, cost};
  }
  // The chunk that has the beginning of an item.
  __device__ int first_chunk(const item& i) const {
    const int at = ::min(i.begin + snap_distance, i.begin + i.cost - 1);
    const int of_longer = longer_chunk_count_ * (chunk_cost_ + 1);
    return at < of_longer ? at / (chunk_cost_ + 1) : longer_chunk_count_ + (at - of_longer) / chunk_cost_;
  }
  // Value of `row` from a per-row array that is spread over the warp, two rows per lane.
  template <class N> __device__ static N of_row(const N (&v)[2], int row) {
    return __shfl_sync(~0U, row < 32 ? v[0] : v[1], row % 32);
  }

 private:
  int cost_[2], before_[2];                                      // `before_`: total cost of all earlier rows
  int all_ = 0, chunk_count_, chunk_cost_, longer_chunk_count_;  // the first longer_chunk_count_ chunks cost one more
};

}  // namespace graft::gpu
