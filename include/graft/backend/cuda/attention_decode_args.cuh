// SPDX-License-Identifier: Apache-2.0
// What a token step of attention is given: where the cache's tiles come from, and the rows of this call. And what a thread
// block has of them.
#pragma once
#include <graft/backend/cuda/attention_rows.cuh>

namespace graft::cuda {

// Of keys and values side by side: boxes of 64 of a head, and of 16 of a chunk of it, for a row's last ones.
struct decode_maps {
  CUtensorMap tile, piece;
};
// Rows of heads, so many elements apart.
template <class T> struct heads_of_rows {
  const T* p;
  long long pitch;
  __device__ const T* at(int row, long long column) const { return p + row * pitch + column; }
};
template <class T> struct decode_args {
  row_spans spans;
  heads_of_rows<T> q, k, v;
  const float* angles;            // [positions][Head]: cosines, then sines; null: nothing turns
  const std::int64_t* positions;  // of the rows
  T *cache, *out;
  int heads, groups, share;  // heads of queries to one of keys
  float scale;
  int stages;                // of all rings
  int finished;              // fours of columns that a part finishes
  unsigned one_of_finished;  // 2^20 over that, rounded up: a quotient without a division
  // No kernel in flight writes what is read early: a copy or a whole graph lies between two calls. The next may begin.
  bool settled;
  // Of attention_spread.cuh: sums of what is cut, and a counter for each row and head of keys, zero between launches.
  float* room;
  std::uint32_t* counters;
};

// Keys of a row, and tiles of the part that a thread block has.
struct decode_span {
  int first, end, from, to;
};
// A stage of a ring, and the phase of its barriers.
struct ring_place {
  std::uint32_t phase;
  int at = 0;
  __device__ void advance(int length) {
    if (++at == length) at = 0, phase ^= 1;
  }
};

}  // namespace graft::cuda
