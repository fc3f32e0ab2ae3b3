// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over a cache by mma.sync, sm_80 and later: a token step. The call's own keys and values are in
// the cache already. A thread block has one row, one head of keys with all heads of queries that share it, at most 16,
// as the rows of a product, and a part of the row's keys; each of its four warps takes every fourth sixteen of them
// through shared memory of its own. The warps' sums meet there, those of the parts in device memory, which a second
// kernel adds up; always in the same order.
#pragma once
#include <graft/backend/cuda/attention_choice.h>
#include <graft/backend/cuda/attention_mma_tiles.cuh>

namespace graft::cuda {

template <class T> struct mma_decode_args {
  row_spans spans;
  head_rows<T> q, k, v;
  int heads, group, parts;
  float scale;
  T* out;
  float* room;  // [rows][heads][parts]: Head sums, the largest score, the sum of exponentials; null with one part
};

template <int Head> struct mma_decode_shape {
  static constexpr int keys = 16, warps = 4, threads = 32 * warps;
  static constexpr int stages = Head > 128 ? 1 : 2;
  static constexpr std::uint32_t pitch = mma_attention_shape<Head>::pitch, tile = keys * pitch, stage = 2 * tile;
  static constexpr std::uint32_t ring = tile;  // behind the queries
  static constexpr int sum_pitch = Head + 4;   // floats
  static constexpr std::uint32_t sums = warps * most_mma_group * sum_pitch * 4, numbers = warps * most_mma_group * 8;
  static constexpr std::uint32_t ring_bytes = ring + warps * stages * stage,
                                 bytes = (ring_bytes > sums ? ring_bytes : sums) + numbers;
  static_assert(bytes <= 99 * 1024);
};

template <class T, int Head>
__global__ void __launch_bounds__(128) mma_decode_kernel(const __grid_constant__ mma_decode_args<T> g) {
#if __CUDA_ARCH__ >= 800
  using shape = mma_decode_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int groups = g.heads / g.group, row = static_cast<int>(blockIdx.y) / groups,
            shared_head = static_cast<int>(blockIdx.y) % groups, part = static_cast<int>(blockIdx.x);
  const std::uint32_t q = ptx::shared_address(raw),
                      own = q + shape::ring + static_cast<std::uint32_t>(warp) * shape::stages * shape::stage;
  const int first = g.spans.first(row), end = ::max(first, g.spans.end(row)), tiles = (end - first + 15) / 16;
  const int from = static_cast<int>(static_cast<long long>(tiles) * part / g.parts),
            to = static_cast<int>(static_cast<long long>(tiles) * (part + 1) / g.parts);
  constexpr int pieces = Head / 8;
  for (int e = static_cast<int>(threadIdx.x); e < 16 * pieces; e += shape::threads) {
    const int h = e / pieces, piece = e % pieces;
    const T* const at = g.q.p + row * g.q.pitch + static_cast<long long>(shared_head) * g.group * Head;
    mma::copy(q + static_cast<std::uint32_t>(h) * shape::pitch + piece * 16,
              h < g.group ? at + h * Head + piece * 8 : at, h < g.group ? 16 : 0);
  }
  commit_copies();
  // Sixteen keys and their values, by the warp that has them; behind the end there are zeros.
  const auto bring = [&](int tile, int stage) {
    if (tile < to) {
      const std::uint32_t at = own + static_cast<std::uint32_t>(stage) * shape::stage;
      for (int e = lane; e < 2 * 16 * pieces; e += 32) {
        const int value = e / (16 * pieces), key = e / pieces % 16, piece = e % pieces, place = first + tile * 16 + key;
        const head_rows<T>& rows = value == 0 ? g.k : g.v;
        const T* const begin = rows.template head<Head>(shared_head);
        const bool inside = place < end;
        mma::copy(at + static_cast<std::uint32_t>(value) * shape::tile +
                      static_cast<std::uint32_t>(key) * shape::pitch + piece * 16,
                  inside ? begin + place * rows.pitch + piece * 8 : begin, inside ? 16 : 0);
      }
    }
    commit_copies();
  };
  const float c = g.scale * log2_e;
  float s[8], o[Head / 2] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  std::uint32_t p[1][4];
  bring(from + warp, 0);
  wait_for_copies();  // the queries
  int stage = 0;
#pragma unroll 1
  for (int tile = from + warp; tile < to; tile += shape::warps) {
    if (shape::stages > 1) {
      bring(tile + shape::warps, stage ^ 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    __syncwarp();
    const std::uint32_t k = own + static_cast<std::uint32_t>(stage) * shape::stage, v = k + shape::tile;
    multiply_along<T, Head, 16>(s, q, k);
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (first + tile * 16 + e / 4 * 8 + lane % 4 * 2 + e % 2 >= end) s[e] = -INFINITY;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(largest[h], row_max(s, h)), factor = exp2_fast((largest[h] - most) * c);
      sum[h] = sum[h] * factor + exponentials(s, h, c, most);
      largest[h] = most;
#pragma unroll
      for (int n = 0; n < Head / 8; ++n) o[4 * n + 2 * h] *= factor, o[4 * n + 2 * h + 1] *= factor;
    }
    pack_rows<T>(p, s);
    multiply_across<T, Head>(o, p, v);
    __syncwarp();  // all lanes have read this tile
    if (shape::stages > 1)
      stage ^= 1;
    else
      bring(tile + shape::warps, 0);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();  // nobody reads queries or tiles any more: sums take their place
  auto* const sums = reinterpret_cast<float*>(raw);
  auto* const numbers = reinterpret_cast<float2*>(raw + shape::bytes - shape::numbers);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(~0U, sum[h], 1), sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
    const int query = lane / 4 + 8 * h;
    float* const at = sums + (warp * most_mma_group + query) * shape::sum_pitch + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < Head / 8; ++n)
      *reinterpret_cast<float2*>(at + 8 * n) = make_float2(o[4 * n + 2 * h], o[4 * n + 2 * h + 1]);
    if (lane % 4 == 0) numbers[warp * most_mma_group + query] = make_float2(largest[h], sum[h]);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < g.group * Head; e += shape::threads) {
    const int query = e / Head, column = e % Head;
    float most = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < shape::warps; ++w) most = fmaxf(most, numbers[w * most_mma_group + query].x);
    const float shift = most == -INFINITY ? 0 : most;
    for (int w = 0; w < shape::warps; ++w) {
      const float factor = exp2_fast((numbers[w * most_mma_group + query].x - shift) * c);
      total += factor * numbers[w * most_mma_group + query].y;
      value += factor * sums[(w * most_mma_group + query) * shape::sum_pitch + column];
    }
    const long long head = static_cast<long long>(row) * g.heads + shared_head * g.group + query;
    if (g.parts == 1) {
      g.out[head * Head + column] = from_float<T>(total > 0 ? value / total : 0);
    } else {
      float* const at = g.room + (head * g.parts + part) * (Head + 2);
      at[column] = value;
      if (column == 0) at[Head] = most, at[Head + 1] = total;
    }
  }
#endif
}

// The parts of a row and head, in their order.
template <class T> struct mma_decode_sum_args {
  const float* room;
  T* out;
  int head, parts;
  float scale;
};
template <class T> __global__ void mma_decode_sum_kernel(const __grid_constant__ mma_decode_sum_args<T> g) {
  const float c = g.scale * log2_e;
  const float* const from = g.room + static_cast<long long>(blockIdx.x) * g.parts * (g.head + 2);
  float most = -INFINITY;
  for (int p = 0; p < g.parts; ++p) most = fmaxf(most, from[p * (g.head + 2) + g.head]);
  const float shift = most == -INFINITY ? 0 : most;
  for (int column = static_cast<int>(threadIdx.x); column < g.head; column += static_cast<int>(blockDim.x)) {
    float total = 0, value = 0;
    for (int p = 0; p < g.parts; ++p) {
      const float* const at = from + p * (g.head + 2);
      const float factor = exp2_fast((at[g.head] - shift) * c);
      total += factor * at[g.head + 1], value += factor * at[column];
    }
    g.out[static_cast<long long>(blockIdx.x) * g.head + column] = from_float<T>(total > 0 ? value / total : 0);
  }
}

}  // namespace graft::cuda
