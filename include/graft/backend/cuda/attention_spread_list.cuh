// SPDX-License-Identifier: Apache-2.0
// The tiles of all rows and heads of a token step as one list, cut into pieces of equal cost (attention_spread.cuh). Where the
// cuts are follows from the spans in device memory alone: a captured launch is right for rows of any lengths, and the same
// rows give the same cuts.
//     cost of a row and head = 1 + its tiles          the list: row after row, in each head after head
// Pieces differ by at most one, but for cuts that would leave a block less than two tiles of a row and head at its beginning:
// these are moved there.
#pragma once
#include <graft/backend/cuda/attention_decode_args.cuh>

namespace graft::cuda {

// Known to a warp: a lane has two rows.
class spread_list {
 public:
  __device__ spread_list(const row_spans& spans, int groups, int blocks) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = half * 32 + lane;
      const bool is_one = r < spans.rows;
      first_[half] = is_one ? spans.first(r) : 0, end_[half] = is_one ? ::max(first_[half], spans.end(r)) : 0;
      cost_[half] = 1 + (end_[half] - first_[half] + 63) / 64;
      const int own = is_one ? cost_[half] * groups : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int ahead = __shfl_up_sync(~0U, sum, step);
        if (lane >= step) sum += ahead;
      }
      before_[half] = is_one ? all_ + sum - own : 0x7fffffff;
      all_ += __shfl_sync(~0U, sum, 31);
    }
    pieces_ = ::min(blocks, ::max(1, all_ / least_spread_cost));
    piece_ = all_ / pieces_, longer_ = all_ % pieces_;
  }
  __device__ int pieces() const { return pieces_; }

  // Where a piece begins; that of the one behind the last is the end of the list.
  __device__ int begin(int k) const {
    const int at = k * piece_ + ::min(k, longer_);
    if (k == pieces_) return all_;
    const int behind = at - find(at).begin;
    return behind <= moved ? at - behind : at;
  }
  // What ends at `to` and does not begin before `from`, of one row and head.
  struct part {
    int row, group, begin, end;  // in the list
    int first_piece;             // where the row and head begins
    bool begins, ends;
    decode_span span;
  };
  __device__ part before(int to, int from) const {
    const item i = find(to - 1);
    const int begin = ::max(i.begin, from), tiles = i.begin + 1;
    return {i.row,
            i.group,
            begin,
            to,
            piece_of(::min(i.begin + moved, i.begin + i.cost - 1)),
            begin == i.begin,
            to == i.begin + i.cost,
            {of_row(first_, i.row), of_row(end_, i.row), ::max(0, begin - tiles), to - tiles}};
  }
  // A number of each row, two of them in a lane.
  template <class N> __device__ static N of_row(const N (&v)[2], int row) {
    return __shfl_sync(~0U, row < 32 ? v[0] : v[1], row % 32);
  }

 private:
  static constexpr int moved = 2;
  struct item {
    int row, group, begin, cost;
  };
  __device__ item find(int at) const {
    const int row = __popc(__ballot_sync(~0U, before_[0] <= at)) + __popc(__ballot_sync(~0U, before_[1] <= at)) - 1;
    const int cost = of_row(cost_, row), in_row = at - of_row(before_, row), group = in_row / cost;
    return {row, group, at - in_row % cost, cost};
  }
  __device__ int piece_of(int at) const {
    const int of_longer = longer_ * (piece_ + 1);
    return at < of_longer ? at / (piece_ + 1) : longer_ + (at - of_longer) / piece_;
  }

  int first_[2], end_[2], cost_[2], before_[2];  // `before_`: cost of the rows ahead
  int all_ = 0, pieces_, piece_, longer_;        // cost of a piece, and how many have one more
};

}  // namespace graft::cuda
