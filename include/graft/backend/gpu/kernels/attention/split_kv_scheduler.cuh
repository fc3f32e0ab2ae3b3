// SPDX-License-Identifier: Apache-2.0
// Tile scheduler of split-KV decode (decode_split_kv.cuh): cuts the tiles of all rows and KV heads into equal chunks.
//
//   cost of a (row, KV head) pair = 1 + its 64-key tiles       list order: row by row, KV head by KV head within a row
//
// The cuts follow from the attention ranges in device memory alone: a captured launch is right for rows of any length,
// and the same rows give the same cuts. Chunk costs differ by at most one, except that a cut at most `moved` cost units
// after the beginning of a pair moves to that beginning, so that no chunk ends with fewer than two tiles of a pair.
#pragma once
#include <graft/backend/gpu/kernels/attention/decode_args.cuh>

namespace graft::gpu {

// A whole warp calls every member: each lane holds two of up to 64 rows.
class split_kv_scheduler {
 public:
  __device__ split_kv_scheduler(const attention_ranges& ranges, int kv_heads, int blocks) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = half * 32 + lane;
      const bool is_one = r < ranges.rows;
      first_[half] = is_one ? ranges.first(r) : 0, end_[half] = is_one ? ::max(first_[half], ranges.end(r)) : 0;
      cost_[half] = 1 + (end_[half] - first_[half] + 63) / 64;
      const int own = is_one ? cost_[half] * kv_heads : 0;
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
  // The part of one (row, KV head) pair within a chunk.
  struct work_item {
    int row, group, begin, end;  // begin and end are list positions
    int first_chunk;             // chunk that has the beginning of the pair
    bool begins, ends;           // whether the item has the beginning and the end of its pair
    decode_range range;
  };
  // The item that ends at list position `to`; it does not begin before `from`.
  __device__ work_item before(int to, int from) const {
    const item i = find(to - 1);
    const int begin = ::max(i.begin, from), tiles = i.begin + 1;
    return {i.row,
            i.group,
            begin,
            to,
            chunk_of(::min(i.begin + snap_distance, i.begin + i.cost - 1)),
            begin == i.begin,
            to == i.begin + i.cost,
            {of_row(first_, i.row), of_row(end_, i.row), ::max(0, begin - tiles), to - tiles}};
  }
  // Value of `row` from a per-row array that is spread over the warp, two rows per lane.
  template <class N> __device__ static N of_row(const N (&v)[2], int row) {
    return __shfl_sync(~0U, row < 32 ? v[0] : v[1], row % 32);
  }

 private:
  static constexpr int snap_distance = 2;
  struct item {
    int row, group, begin, cost;
  };
  __device__ item find(int at) const {
    const int row = __popc(__ballot_sync(~0U, before_[0] <= at)) + __popc(__ballot_sync(~0U, before_[1] <= at)) - 1;
    const int cost = of_row(cost_, row), in_row = at - of_row(before_, row), group = in_row / cost;
    return {row, group, at - in_row % cost, cost};
  }
  __device__ int chunk_of(int at) const {
    const int of_longer = longer_chunk_count_ * (chunk_cost_ + 1);
    return at < of_longer ? at / (chunk_cost_ + 1) : longer_chunk_count_ + (at - of_longer) / chunk_cost_;
  }

  int first_[2], end_[2], cost_[2], before_[2];                  // `before_`: total cost of all earlier rows
  int all_ = 0, chunk_count_, chunk_cost_, longer_chunk_count_;  // the first longer_chunk_count_ chunks cost one more
};

}  // namespace graft::gpu
