// SPDX-License-Identifier: Apache-2.0
// Row statistics that attention's backward pass reads, sm_90a: log-sum-exp and delta, and compact ranges.
//
//   delta = <dO, O> per row and head     O, dO [rows, heads, d]     lse [heads, rows] from forward, here times log2(e)
//   d sink = -exp(sink - lse) delta per row and head, where there are sinks, which lse includes
//
// grid (blocks of 64 rows, heads), 256 threads: 16 lanes per row, each with one 16-byte vector of O and of dO. The
// lanes are summed by shuffles in a fixed order.
#pragma once
#include <graft/backend/gpu/kernels/attention/softmax_rows.cuh>

#include <climits>

namespace graft::gpu {

// Rows are padded to whole tiles of 128.
struct row_statistics {
  float* numbers;  // [heads][blocks of 64 rows][2][64]: lse times log2(e), +inf for a row without keys; then delta
  int2* ranges;    // [rows]: first key and end; a row without keys has (INT_MAX, 0)
  // [blocks of 64 rows]: x = min first, y = max end; z = max first and w = min end over rows with any key.
  int4* key_bounds;
};
// The part of dS that is in memory at once: `columns` KV heads from `column` on, `tiles` 128-key tiles from `tile` on.
struct ds_slab {
  int column, columns, tile, tiles;
  std::uint32_t* ds;  // [query heads of the slab][blocks of 64 rows][tiles][ds_tile]
};
struct row_statistics_args {
  attention_ranges ranges;
  int heads;
  const void *out, *d_out;  // [rows][heads * head]
  const float* lse;         // [heads][rows], from forward
  row_statistics statistics;
  attention_sinks sinks;
  void* d_sinks;  // gradient of the sinks, with their pitch
};
inline constexpr int row_statistics_threads = 256;

// Stores the gradient of a row's sink; lse is times log2(e).
template <class T>
__device__ __forceinline__ void store_sink_grad(const attention_sinks& sinks, void* to, int row, int head, float lse,
                                                float delta) {
  static_cast<T*>(to)[row * sinks.pitch + head] =
      from_float<T>(-exp2_approx(load_sink<T>(sinks, row, head) - lse) * delta);
}

// Stores the ranges of a block of 64 rows and their bounds; one warp calls this.
__device__ __forceinline__ void store_ranges(const attention_ranges& s, const row_statistics& statistics, int block,
                                             int lane) {
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
    statistics.ranges[r] = look;
  }
  low = __reduce_min_sync(~0U, low), high = __reduce_max_sync(~0U, high);
  last_low = __reduce_max_sync(~0U, last_low), first_high = __reduce_min_sync(~0U, first_high);
  if (lane == 0) statistics.key_bounds[block] = make_int4(low, high, last_low, first_high);
}

template <class T, int Head>
__global__ void __launch_bounds__(row_statistics_threads)
    row_statistics_kernel(const __grid_constant__ row_statistics_args g) {
  constexpr int lanes = 16, vectors = Head / 8, at_once = row_statistics_threads / lanes, each = 64 / at_once;
  static_assert(vectors <= lanes);
  const int block = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x), vec = thread % lanes, row = thread / lanes;
  uint4 o[each], d[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int r = block * 64 + row + i * at_once;
    const long long at = (static_cast<long long>(r) * g.heads + head) * Head + vec * 8;
    const bool there = r < g.ranges.rows && vec < vectors;
    o[i] = ptx::load_streaming(static_cast<const T*>(g.out) + at, there);
    d[i] = ptx::load_streaming(static_cast<const T*>(g.d_out) + at, there);
  }
  if (head == 0 && thread < 32) store_ranges(g.ranges, g.statistics, block, thread);
  float* const to = g.statistics.numbers + (static_cast<long long>(head) * gridDim.x + block) * 128;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int r = block * 64 + row + i * at_once;
    const T *a = reinterpret_cast<const T*>(&o[i]), *b = reinterpret_cast<const T*>(&d[i]);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += to_float(a[e]) * to_float(b[e]);
#pragma unroll
    for (int s = lanes / 2; s > 0; s /= 2) sum += __shfl_xor_sync(~0U, sum, s);
    if (vec == 0) {
      const float lse = r < g.ranges.rows ? log2_e * g.lse[static_cast<long long>(head) * g.ranges.rows + r] : INFINITY;
      to[row + i * at_once] = lse;
      to[64 + row + i * at_once] = sum;
      if (g.sinks.p != nullptr && r < g.ranges.rows) store_sink_grad<T>(g.sinks, g.d_sinks, r, head, lse, sum);
    }
  }
}

}  // namespace graft::gpu
