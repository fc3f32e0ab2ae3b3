// SPDX-License-Identifier: Apache-2.0
// What the warpgroups of the attention kernels share: products along a head, probabilities, and rows on their way out. An
// accumulator of 64 x N lies as wgmma leaves it: element 4j + 2h + e of a thread is row 8h of its own two, column
// 8j + 2 (lane % 4) + e.
#pragma once
#include <graft/backend/cuda/attention_shape.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

inline constexpr float log2_e = 1.44269504F;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The warpgroup of a thread, as a number that the compiler knows to be that of the whole warp: addresses and descriptors
// that follow from it are computed once, in uniform registers.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(~0U, static_cast<int>(threadIdx.x / 128), 0); }

// Reads and writes of accumulators stay on this side of a wait or of an issue. No instruction.
template <int N> __device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d = A Bᵀ along the head; the chunks of either tile lie `a_next` and `b_next` bytes apart.
template <class T, int Head, int N>
__device__ __forceinline__ void multiply_heads(float (&d)[N / 2], std::uint32_t a, std::uint32_t a_next,
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
// d += P B, with P in registers and B [16 Steps, Head] stored row by row.
template <class T, int Head, int Steps>
__device__ __forceinline__ void multiply_rows(float (&d)[Head / 2], const std::uint32_t (&p)[Steps][4], std::uint32_t b,
                                              std::uint32_t b_next, bool keep) {
  using head = head_shape<Head>;
  const std::uint64_t right = across_descriptor(b, b_next, head::pitch);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < Steps; ++k)
    wgmma<T, Head>::template registers<true>(d, p[k], right + head::pitch * k, keep || k > 0);
  wgmma_commit();
}
// Accumulators as the left operand of the next product.
template <class T, int N, int Steps>
__device__ __forceinline__ void pack_rows(std::uint32_t (&p)[Steps][4], const float (&s)[N]) {
  static_assert(N == 8 * Steps);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) p[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
}

// The largest score of one of a thread's two rows; four lanes share a row.
template <int N> __device__ __forceinline__ float row_max(const float (&s)[N], int h) {
  float x = s[2 * h], y = s[2 * h + 1];
#pragma unroll
  for (int j = 1; j < N / 4; ++j) x = fmaxf(x, s[4 * j + 2 * h]), y = fmaxf(y, s[4 * j + 2 * h + 1]);
  x = fmaxf(x, y);
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}
// Scores of a row become 2^(c (s - largest)); returns this thread's part of their sum.
template <int N> __device__ __forceinline__ float exponentials(float (&s)[N], int h, float c, float largest) {
  const float shift = -largest * c;
  float x = 0, y = 0;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    float &u = s[4 * j + 2 * h], &w = s[4 * j + 2 * h + 1];
    u = exp2_fast(fmaf(u, c, shift)), x += u;
    w = exp2_fast(fmaf(w, c, shift)), y += w;
  }
  return x + y;
}

// What the warp that produces says of a tile, for a whole warp. Lane 0 reads it, which says later that the place is free:
// nobody else's read would be known to come before that.
__device__ __forceinline__ int2 read_note(const int2* at, int lane) {
  int2 note = make_int2(0, 0);
  if (lane == 0) note = *at;
  return make_int2(__shfl_sync(~0U, note.x, 0), __shfl_sync(~0U, note.y, 0));
}

// The two rows of a thread, and the keys that they look at.
struct thread_rows {
  int low[2];
  unsigned width[2];
  __device__ void load(const row_spans& s, int row) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h;
      low[h] = 0, width[h] = 0;
      if (r < s.rows) low[h] = s.first(r), width[h] = static_cast<unsigned>(::max(0, s.end(r) - low[h]));
    }
  }
  // Scores of keys that a row does not look at; `key` is that of the thread's first column.
  template <int N> __device__ __forceinline__ void mask(float (&s)[N], int key) const {
#pragma unroll
    for (int e = 0; e < N; ++e)
      if (static_cast<unsigned>(key - low[e / 2 % 2] + e / 4 * 8 + e % 2) >= width[e / 2 % 2]) s[e] = -INFINITY;
  }
};

// 64 rows of a warpgroup through shared memory [chunk][64][chunk] that nobody else reads any more; the caller's thread 0
// knows of the store.
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

}  // namespace graft::cuda
