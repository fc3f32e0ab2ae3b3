// SPDX-License-Identifier: Apache-2.0
// What attention's backward pass knows of its rows before it begins, sm_90a: the sums that forward left and D = <dO, O> of
// each row, 64 rows together as the products read them, and what rows look at, in 32 bits and for 64 at once. A thread
// block has 64 rows of one head, sixteen lanes a row.
#pragma once
#include <graft/backend/cuda/attention_rows.cuh>

#include <climits>

namespace graft::cuda {

// Rows are padded to whole tiles of 128.
struct attention_notes {
  float* numbers;  // [heads][blocks of 64 rows]: 64 sums times log2(e), +inf where a row looks at nothing; then 64 D
  int2* spans;     // [rows]: first and end
  int4* bounds;  // [blocks of 64 rows]: all rows look at keys within x to y, and every row that looks at any at z to w
};
// The part of dS that is in memory at once: of heads of keys, and of tiles of 128 keys.
struct score_piece {
  int column, columns, tile, tiles;
  std::uint32_t* ds;  // [heads of queries][blocks of 64 rows][tiles][score_tile]
};
struct grad_notes_args {
  row_spans spans;
  int heads;
  const void *out, *d_out;  // [rows][heads * head]
  const float* sums;        // as forward left them
  attention_notes notes;
};
inline constexpr int grad_notes_threads = 256;

// What 64 rows look at, by one warp.
__device__ __forceinline__ void note_spans(const row_spans& s, const attention_notes& notes, int block, int lane) {
  int low = INT_MAX, high = 0, last_low = 0, first_high = INT_MAX;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = block * 64 + i * 32 + lane;
    int2 look = make_int2(INT_MAX, 0);
    if (r < s.rows && s.end(r) > s.first(r)) {
      look = make_int2(s.first(r), s.end(r));
      last_low = ::max(last_low, look.x), first_high = ::min(first_high, look.y);
    }
    low = ::min(low, look.x), high = ::max(high, look.y);
    notes.spans[r] = look;
  }
  low = __reduce_min_sync(~0U, low), high = __reduce_max_sync(~0U, high);
  last_low = __reduce_max_sync(~0U, last_low), first_high = __reduce_min_sync(~0U, first_high);
  if (lane == 0) notes.bounds[block] = make_int4(low, high, last_low, first_high);
}

template <class T, int Head>
__global__ void __launch_bounds__(grad_notes_threads) grad_notes_kernel(const __grid_constant__ grad_notes_args g) {
  constexpr int lanes = 16, pieces = Head / 8, at_once = grad_notes_threads / lanes, each = 64 / at_once;
  static_assert(pieces <= lanes);
  const int block = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x), piece = thread % lanes, row = thread / lanes;
  uint4 o[each], d[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int r = block * 64 + row + i * at_once;
    const long long at = (static_cast<long long>(r) * g.heads + head) * Head + piece * 8;
    const bool there = r < g.spans.rows && piece < pieces;
    o[i] = ptx::load_once(static_cast<const T*>(g.out) + at, there);
    d[i] = ptx::load_once(static_cast<const T*>(g.d_out) + at, there);
  }
  if (head == 0 && thread < 32) note_spans(g.spans, g.notes, block, thread);
  float* const to = g.notes.numbers + (static_cast<long long>(head) * gridDim.x + block) * 128;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int r = block * 64 + row + i * at_once;
    const T *a = reinterpret_cast<const T*>(&o[i]), *b = reinterpret_cast<const T*>(&d[i]);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += to_float(a[e]) * to_float(b[e]);
#pragma unroll
    for (int s = lanes / 2; s > 0; s /= 2) sum += __shfl_xor_sync(~0U, sum, s);
    if (piece == 0) {
      to[row + i * at_once] =
          r < g.spans.rows ? log2_e * g.sums[static_cast<long long>(head) * g.spans.rows + r] : INFINITY;
      to[64 + row + i * at_once] = sum;
    }
  }
}

}  // namespace graft::cuda
