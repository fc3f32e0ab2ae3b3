// SPDX-License-Identifier: Apache-2.0
// What a token step of attention is given: where the cache's tiles come from, and the rows of this call.
#pragma once
#include <graft/backend/cuda/attention_rows.cuh>

namespace graft::cuda {

struct decode_maps {
  CUtensorMap k, v;
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
  int slots;                 // of all rings
  int finished;              // fours of columns that a part finishes
  unsigned one_of_finished;  // 2^20 over that, rounded up: a quotient without a division
  // No kernel in flight writes what is read early: a copy or a whole graph lies between two calls. The next may begin.
  bool settled;
};

}  // namespace graft::cuda
