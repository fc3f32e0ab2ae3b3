// SPDX-License-Identifier: Apache-2.0
// Decode attention by mma.sync, sm_80 and later: 1 to 64 query rows over a KV cache, split KV in two launches.
//
//   O = softmax(Q Kᵀ / √d) V   Q, O [rows, heads, d]   K, V [slots, kv_heads, d]   GQA up to 16:1
//
// The cache already holds the call's own keys and values (append_kernel). Scores may have a soft cap (Capped).
//
// Work split   grid (KV splits, rows x KV heads): a CTA has one row, one KV head with its query heads as the 16 rows of
//              the mma, and a contiguous part of the row's tiles of 16 keys.
// Warps        Four; each takes every fourth tile through its own cp.async stages in shared memory.
// Reduction    Warps are combined in shared memory in warp order; splits go to the workspace and mma_decode_sum_kernel
//              combines them in split order: the same call gives the same bits.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/backend/gpu/kernels/attention/mma_tiles.cuh>

namespace graft::gpu {

template <class T> struct mma_decode_args {
  attention_ranges ranges;
  head_rows<T> q, k, v;
  int heads, group, kv_splits;
  float scale;
  T* out;
  float* workspace;  // [rows][heads][splits][Head + 2]: O, maximum score, sum; null with one split
  score_cap cap;
  attention_sinks sinks;  // added once: here with one split, else where the splits are combined
};

template <int Head> struct mma_decode_shape {
  static constexpr int keys = 16, warps = 4, threads = 32 * warps;
  static constexpr int stages = Head > 128 ? 1 : 2;
  static constexpr std::uint32_t pitch = mma_attention_shape<Head>::pitch, tile = keys * pitch, stage = 2 * tile;
  static constexpr std::uint32_t ring = tile;  // the stages follow the queries
  static constexpr int sum_pitch = Head + 4;   // floats per row of sums
  static constexpr std::uint32_t sums = warps * max_mma_group * sum_pitch * 4, numbers = warps * max_mma_group * 8;
  static constexpr std::uint32_t ring_bytes = ring + warps * stages * stage,
                                 bytes = (ring_bytes > sums ? ring_bytes : sums) + numbers;
  static_assert(bytes <= 99 * 1024);
};

template <class T, int Head, bool Capped = false>
__global__ void __launch_bounds__(128) mma_decode_kernel(const __grid_constant__ mma_decode_args<T> g) {
#if __CUDA_ARCH__ >= 800
  using shape = mma_decode_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int kv_heads = g.heads / g.group, row = static_cast<int>(blockIdx.y) / kv_heads,
            shared_head = static_cast<int>(blockIdx.y) % kv_heads, kv_split = static_cast<int>(blockIdx.x);
  const std::uint32_t q = ptx::shared_address(raw),
                      own = q + shape::ring + static_cast<std::uint32_t>(warp) * shape::stages * shape::stage;
  const int first = g.ranges.first(row), end = ::max(first, g.ranges.end(row)), tiles = (end - first + 15) / 16;
  const int from = static_cast<int>(static_cast<long long>(tiles) * kv_split / g.kv_splits),
            to = static_cast<int>(static_cast<long long>(tiles) * (kv_split + 1) / g.kv_splits);
  constexpr int vectors = Head / 8;
  for (int e = static_cast<int>(threadIdx.x); e < 16 * vectors; e += shape::threads) {
    const int h = e / vectors, vec = e % vectors;
    const T* const at = g.q.p + row * g.q.pitch + static_cast<long long>(shared_head) * g.group * Head;
    ptx::copy_async16(q + static_cast<std::uint32_t>(h) * shape::pitch + vec * 16,
                      h < g.group ? at + h * Head + vec * 8 : at, h < g.group ? 16 : 0);
  }
  ptx::commit_copies();
  // A warp loads its tile of 16 keys and values; keys at or after `end` are zeros.
  const auto load_kv = [&](int tile, int stage) {
    if (tile < to) {
      const std::uint32_t at = own + static_cast<std::uint32_t>(stage) * shape::stage;
      for (int e = lane; e < 2 * 16 * vectors; e += 32) {
        const int value = e / (16 * vectors), key = e / vectors % 16, vec = e % vectors,
                  key_row = first + tile * 16 + key;
        const head_rows<T>& rows = value == 0 ? g.k : g.v;
        const T* const begin = rows.template head<Head>(shared_head);
        const bool inside = key_row < end;
        ptx::copy_async16(at + static_cast<std::uint32_t>(value) * shape::tile +
                              static_cast<std::uint32_t>(key) * shape::pitch + vec * 16,
                          inside ? begin + key_row * rows.pitch + vec * 8 : begin, inside ? 16 : 0);
      }
    }
    ptx::commit_copies();
  };
  const float c = score_unit<Capped>(g.scale, g.cap) * log2_e;
  float s[8], o[Head / 2] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  std::uint32_t p[1][4];
  load_kv(from + warp, 0);
  wait_for_copies();  // for the queries
  int stage = 0;
#pragma unroll 1
  for (int tile = from + warp; tile < to; tile += shape::warps) {
    if (shape::stages > 1) {
      load_kv(tile + shape::warps, stage ^ 1);
      ptx::wait_for_copies<1>();
    } else {
      ptx::wait_for_all_copies();
    }
    __syncwarp();
    const std::uint32_t k = own + static_cast<std::uint32_t>(stage) * shape::stage, v = k + shape::tile;
    multiply_nt<T, Head, 16>(s, q, k);
    if constexpr (Capped) cap_scores(s, g.cap);
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (first + tile * 16 + e / 4 * 8 + lane % 4 * 2 + e % 2 >= end) s[e] = -INFINITY;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(largest[h], row_max(s, h)), factor = exp2_approx((largest[h] - most) * c);
      sum[h] = sum[h] * factor + exponentials(s, h, c, most);
      largest[h] = most;
#pragma unroll
      for (int n = 0; n < Head / 8; ++n) o[4 * n + 2 * h] *= factor, o[4 * n + 2 * h + 1] *= factor;
    }
    pack_rows<T>(p, s);
    multiply_trans_b<T, Head>(o, p, v);
    __syncwarp();  // all lanes have read this tile
    if (shape::stages > 1)
      stage ^= 1;
    else
      load_kv(tile + shape::warps, 0);
  }
  ptx::wait_for_all_copies();
  __syncthreads();  // all reads of queries and tiles are done: the sums reuse their memory
  auto* const sums = reinterpret_cast<float*>(raw);
  auto* const numbers = reinterpret_cast<float2*>(raw + shape::bytes - shape::numbers);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(~0U, sum[h], 1), sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
    const int query = lane / 4 + 8 * h;
    float* const at = sums + (warp * max_mma_group + query) * shape::sum_pitch + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < Head / 8; ++n)
      *reinterpret_cast<float2*>(at + 8 * n) = make_float2(o[4 * n + 2 * h], o[4 * n + 2 * h + 1]);
    if (lane % 4 == 0) numbers[warp * max_mma_group + query] = make_float2(largest[h], sum[h]);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < g.group * Head; e += shape::threads) {
    const int query = e / Head, column = e % Head;
    float most = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < shape::warps; ++w) most = fmaxf(most, numbers[w * max_mma_group + query].x);
    const float shift = most == -INFINITY ? 0 : most;
    for (int w = 0; w < shape::warps; ++w) {
      const float factor = exp2_approx((numbers[w * max_mma_group + query].x - shift) * c);
      total += factor * numbers[w * max_mma_group + query].y;
      value += factor * sums[(w * max_mma_group + query) * shape::sum_pitch + column];
    }
    const long long head = static_cast<long long>(row) * g.heads + shared_head * g.group + query;
    if (g.kv_splits == 1) {
      if (g.sinks.p != nullptr) {
        most *= c;
        value *= add_sink(most, total, load_sink<T>(g.sinks, row, shared_head * g.group + query));
      }
      g.out[head * Head + column] = from_float<T>(total > 0 ? value / total : 0);
    } else {
      float* const at = g.workspace + (head * g.kv_splits + kv_split) * (Head + 2);
      at[column] = value;
      if (column == 0) at[Head] = most, at[Head + 1] = total;
    }
  }
#endif
}

// Combines the KV splits of each row and query head in split order; one CTA per (row, head).
template <class T> struct mma_decode_sum_args {
  const float* workspace;
  T* out;
  int head, heads, kv_splits;
  float unit;  // of the maximum scores: 1 / √d, or the soft cap
  attention_sinks sinks;
};
template <class T> __global__ void mma_decode_sum_kernel(const __grid_constant__ mma_decode_sum_args<T> g) {
  const float c = g.unit * log2_e;
  const int row = static_cast<int>(blockIdx.x) / g.heads, head = static_cast<int>(blockIdx.x) % g.heads;
  const float* const from = g.workspace + static_cast<long long>(blockIdx.x) * g.kv_splits * (g.head + 2);
  float most = -INFINITY;
  for (int p = 0; p < g.kv_splits; ++p) most = fmaxf(most, from[p * (g.head + 2) + g.head]);
  const float shift = most == -INFINITY ? 0 : most;
  for (int column = static_cast<int>(threadIdx.x); column < g.head; column += static_cast<int>(blockDim.x)) {
    float total = 0, value = 0;
    for (int p = 0; p < g.kv_splits; ++p) {
      const float* const at = from + p * (g.head + 2);
      const float factor = exp2_approx((at[g.head] - shift) * c);
      total += factor * at[g.head + 1], value += factor * at[column];
    }
    if (g.sinks.p != nullptr) {
      float largest = shift * c;
      value *= add_sink(largest, total, load_sink<T>(g.sinks, row, head));
    }
    g.out[static_cast<long long>(blockIdx.x) * g.head + column] = from_float<T>(total > 0 ? value / total : 0);
  }
}

}  // namespace graft::gpu
