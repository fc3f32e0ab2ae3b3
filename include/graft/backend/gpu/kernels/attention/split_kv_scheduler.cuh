// SPDX-License-Identifier: Apache-2.0
// The tiles of split-KV decode (decode_split_kv.cuh) as a list for stream_k_tiles (tile/tile_scheduler.cuh).
//
//   cost of a (row, KV head) pair = 1 + its 64-key tiles
//
// The cuts follow from the attention ranges in device memory alone: a captured launch is right for rows of any length,
// and the same rows give the same cuts.
#pragma once
#include <graft/backend/gpu/kernels/attention/decode_args.cuh>
#include <graft/backend/gpu/tile/tile_scheduler.cuh>

namespace graft::gpu {

// Keys of the rows of a call, two rows per lane of a warp, and their tiles.
struct row_keys {
  int first[2], end[2], cost[2];
  __device__ explicit row_keys(const attention_ranges& ranges) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = half * 32 + lane;
      const bool is_one = r < ranges.rows;
      first[half] = is_one ? ranges.first(r) : 0, end[half] = is_one ? ::max(first[half], ranges.end(r)) : 0;
      cost[half] = 1 + (end[half] - first[half] + 63) / 64;
    }
  }
};

// A whole warp calls every member.
class split_kv_scheduler {
 public:
  __device__ split_kv_scheduler(const attention_ranges& ranges, int kv_heads, int blocks)
      : keys_(ranges), list_(keys_.cost, ranges.rows, kv_heads, blocks, min_chunk_cost) {}
  __device__ int chunks() const { return list_.chunks(); }
  __device__ int begin(int k) const { return list_.begin(k); }

  // The part of one (row, KV head) pair within a chunk.
  struct work_item {
    int row, group, begin, end;  // begin and end are list positions
    int first_chunk;             // chunk that has the beginning of the pair
    bool begins, ends;           // whether the item has the beginning and the end of its pair
    decode_range range;
  };
  // The item that ends at list position `to`; it does not begin before `from`.
  __device__ work_item before(int to, int from) const {
    const stream_k_tiles::item i = list_.find(to - 1);
    const int begin = ::max(i.begin, from), tiles = i.begin + 1;
    return {i.row,
            i.column,
            begin,
            to,
            list_.first_chunk(i),
            begin == i.begin,
            to == i.begin + i.cost,
            {of_row(keys_.first, i.row), of_row(keys_.end, i.row), ::max(0, begin - tiles), to - tiles}};
  }
  template <class N> __device__ static N of_row(const N (&v)[2], int row) { return stream_k_tiles::of_row(v, row); }

 private:
  row_keys keys_;
  stream_k_tiles list_;
};

}  // namespace graft::gpu
