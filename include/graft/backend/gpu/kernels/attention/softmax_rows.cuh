// SPDX-License-Identifier: Apache-2.0
// Building blocks of the wgmma attention kernels, per consumer warpgroup: products over the columns of a head,
// online-softmax rows, masks and tile stores. An accumulator of 64 x N has wgmma's layout: element 4j + 2h + e of a
// thread is row 8h + lane / 4 of its warp's 16 rows, column 8j + 2 (lane % 4) + e.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/attention/shared_layout.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

inline constexpr float log2_e = 1.44269504F;

using ptx::exp2_approx;
using ptx::log2_approx;
using ptx::pin;
// The warpgroup of a thread. The shuffle tells the compiler that the value is uniform over the warp, so that addresses
// and descriptors derived from it are computed once, in uniform registers.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(~0U, static_cast<int>(threadIdx.x / 128), 0); }

// Issues d = A Bᵀ over the columns of a head; `a_next` and `b_next` are the bytes between column chunks of a tile.
template <class T, int Head, int N>
__device__ __forceinline__ void mma_along_head(float (&d)[N / 2], std::uint32_t a, std::uint32_t a_next,
                                               std::uint32_t b, std::uint32_t b_next) {
  using head = head_shape<Head>;
  const std::uint64_t left = tile_descriptor(a, head::pitch), right = tile_descriptor(b, head::pitch);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < head::steps; ++k) {
    const int chunk = k / head::steps_per_chunk, in = 2 * (k % head::steps_per_chunk);
    wgmma<T, N>::shared(d, left + chunk * (a_next >> 4) + in, right + chunk * (b_next >> 4) + in, k > 0);
  }
  wgmma_commit();
}
// Issues d += P B, or d = P B where `keep` is false, with P in registers and B [16 Steps, Head] row-major.
template <class T, int Head, int Steps>
__device__ __forceinline__ void mma_over_rows(float (&d)[Head / 2], const std::uint32_t (&p)[Steps][4], std::uint32_t b,
                                              std::uint32_t b_next, bool keep) {
  using head = head_shape<Head>;
  const std::uint64_t right = mn_major_descriptor(b, b_next, head::pitch);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < Steps; ++k)
    wgmma<T, Head>::template registers<true>(d, p[k], right + head::pitch * k, keep || k > 0);
  wgmma_commit();
}
// Packs accumulators as the A operand of the next product.
template <class T, int N, int Steps>
__device__ __forceinline__ void pack_rows(std::uint32_t (&p)[Steps][4], const float (&s)[N]) {
  static_assert(N == 8 * Steps);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) p[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
}

// Maximum score of row h of a thread's two rows; four lanes share a row.
template <int N> __device__ __forceinline__ float row_max(const float (&s)[N], int h) {
  float x = s[2 * h], y = s[2 * h + 1];
#pragma unroll
  for (int j = 1; j < N / 4; ++j) x = fmaxf(x, s[4 * j + 2 * h]), y = fmaxf(y, s[4 * j + 2 * h + 1]);
  x = fmaxf(x, y);
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}
// Replaces the scores s of row h by 2^(c (s - largest)); returns this thread's partial sum of them.
template <int N> __device__ __forceinline__ float exponentials(float (&s)[N], int h, float c, float largest) {
  const float shift = -largest * c;
  float x = 0, y = 0;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    float &u = s[4 * j + 2 * h], &w = s[4 * j + 2 * h + 1];
    u = exp2_approx(fmaf(u, c, shift)), x += u;
    w = exp2_approx(fmaf(w, c, shift)), y += w;
  }
  return x + y;
}

// What the kernels' scores are multiplied by: products q · k by 1 / √d, capped ones by the cap.
template <bool Capped> __device__ __forceinline__ float score_unit(float scale, const score_cap& cap) {
  return Capped ? cap.largest : scale;
}
// Replaces products q · k by tanh(q · k / (√d cap)). The two approximate functions have an absolute error near 2^-22;
// that of tanh.approx is 2^-11, which a cap of 50 would multiply.
template <int N> __device__ __forceinline__ void cap_scores(float (&s)[N], const score_cap& cap) {
#pragma unroll
  for (int e = 0; e < N; ++e) s[e] = fmaf(-2, ptx::reciprocal_approx(1 + exp2_approx(s[e] * cap.exponent)), 1);
}
// 1 - tanh², the derivative of a capped score, from its probability p = 2^(cap log2(e) tanh - lse), so that tanh needs
// no register. Zero probabilities and rows without keys (lse = +inf) give finite numbers.
__device__ __forceinline__ float cap_slope(float p, float lse, const score_cap& cap) {
  const float t = (log2_approx(fmaxf(p, 1.2e-38F)) + lse) * cap.inverse;
  return fmaxf(0, fmaf(-t, t, 1));
}

// The sink of a row and query head, times log2(e). The previous kernel may have written it.
template <class T> __device__ __forceinline__ float load_sink(const attention_sinks& sinks, int row, int head) {
  return log2_e * to_float(ptx::load_from_l2(static_cast<const T*>(sinks.p) + row * sinks.pitch + head));
}
// Adds a sink to the maximum score (in log2 units) and the sum of a row; returns what the row's O is multiplied by.
__device__ __forceinline__ float add_sink(float& most, float& sum, float sink) {
  const float now = fmaxf(fmaxf(most, sink), -1e30F), factor = exp2_approx(most - now);
  sum = sum * factor + exp2_approx(sink - now), most = now;
  return factor;
}

// Broadcasts the producer's info on a stage to a warp. Only lane 0 reads it, because lane 0 releases the stage later:
// reads of other lanes would not be ordered before that release.
__device__ __forceinline__ int2 read_stage_info(const int2* at, int lane) {
  int2 note = make_int2(0, 0);
  if (lane == 0) note = *at;
  return make_int2(__shfl_sync(~0U, note.x, 0), __shfl_sync(~0U, note.y, 0));
}

// Attention ranges of the two accumulator rows of a thread: keys [low, low + width).
struct thread_rows {
  int low[2];
  unsigned width[2];
  __device__ void load(const attention_ranges& s, int row) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h;
      low[h] = 0, width[h] = 0;
      if (r < s.rows) low[h] = s.first(r), width[h] = static_cast<unsigned>(::max(0, s.end(r) - low[h]));
    }
  }
  // Sets the scores of keys outside the row's range to -inf; `key` is the key of the thread's first column.
  template <int N> __device__ __forceinline__ void mask(float (&s)[N], int key) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
      if (static_cast<unsigned>(key - low[e / 2 % 2] + e / 4 * 8 + e % 2) >= width[e / 2 % 2]) s[e] = -INFINITY;
  }
};

// Stores a warpgroup's 64 rows, scaled by `upper` (row 0 of a thread) and `lower` (row 1), by TMA through shared memory
// `to` [chunk][64][chunk], which nobody else may use. Thread 0 of the warpgroup issues the store and must wait for it.
template <class T, int Head>
__device__ __forceinline__ void store_rows(const CUtensorMap* map, const float (&x)[Head / 2], float upper, float lower,
                                           std::uint32_t to, int row, int head, int barrier) {
  using shape = head_shape<Head>;
  const int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32);
  ptx::named_barrier(barrier, 128);
#pragma unroll
  for (int i = 0; i < Head / 16; ++i) {
    const std::uint32_t v[4] = {
        pack<T>(x[8 * i] * upper, x[8 * i + 1] * upper), pack<T>(x[8 * i + 2] * lower, x[8 * i + 3] * lower),
        pack<T>(x[8 * i + 4] * upper, x[8 * i + 5] * upper), pack<T>(x[8 * i + 6] * lower, x[8 * i + 7] * lower)};
    const int chunk = i / shape::steps_per_chunk, column = i % shape::steps_per_chunk * 16 + lane / 16 * 8;
    ptx::store_matrix(to + chunk * 64 * shape::pitch + tile_offset(warp * 16 + lane % 16, column, shape::pitch), v);
  }
  ptx::fence_async_shared();
  ptx::named_barrier(barrier, 128);
  if (threadIdx.x % 128 == 0) ptx::store_box(map, row, head * shape::chunks, to);
}

}  // namespace graft::gpu
