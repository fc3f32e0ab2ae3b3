// SPDX-License-Identifier: Apache-2.0
// Building blocks of the mma.sync m16n8k16 attention kernels, sm_80 and later: tiles of query rows or keys in shared
// memory, filled by cp.async, and products of a warp's 16 rows with them.
//
// A tile row is 16 bytes longer than a head, an odd number of 16-byte vectors, so that neither cp.async nor ldmatrix
// has bank conflicts. Accumulators are laid out as in softmax_rows.cuh. Four warps have 16 rows each. Shared memory
// stays within the 99 KB that every device since sm_80 offers.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/attention/softmax_rows.cuh>
#include <graft/backend/gpu/tile/loaders.cuh>

#include <climits>

namespace graft::gpu {

template <int Head> struct mma_attention_shape {
  static constexpr int rows = 64, threads = 128;
  static constexpr int keys = Head > 128 ? 32 : 64;  // keys per step
  static constexpr int steps = Head / 16;
  static constexpr std::uint32_t pitch = 2 * Head + 16, tile = rows * pitch, step = keys * pitch;
  static constexpr std::uint32_t prefill_bytes = tile + 2 * step, grad_bytes = 2 * tile + 2 * step;
  static_assert(Head % 16 == 0 && pitch / 16 % 2 == 1 && grad_bytes <= 99 * 1024);
};

// Query, key or value heads of one call, `pitch` elements from row to row.
template <class T> struct head_rows {
  const T* p;
  long long pitch;
  int rows;
  template <int Head> __device__ const T* head(int h) const { return p + static_cast<long long>(h) * Head; }
};

// Copies Rows rows of a head, beginning at `first`, by cp.async, with zeros for missing rows. The caller commits.
template <class T, int Head, int Rows>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const head_rows<T>& from, int head, int first) {
  constexpr int vectors = Head / 8;
  const T* const at = from.template head<Head>(head);
  copy_tile_async<Rows, vectors, 128>(
      static_cast<int>(threadIdx.x),
      [&](int row, int vec) {
        return to + static_cast<std::uint32_t>(row) * mma_attention_shape<Head>::pitch + vec * 16;
      },
      [&](int row, int vec) -> vector_source {
        const bool inside = first + row < from.rows;
        return {inside ? at + (first + row) * from.pitch + vec * 8 : at, inside};
      });
}
// Waits for all copies of the CTA and for all its threads.
__device__ __forceinline__ void wait_for_copies() {
  ptx::wait_for_all_copies();
  __syncthreads();
}

namespace mma {
// d[0..3] and d[4..7] += A B for two adjacent tiles of 8 columns.
template <class T>
__device__ __forceinline__ void multiply_pair(float* d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
  ptx::mma_m16n8k16<T>(*reinterpret_cast<float(*)[4]>(d), a, b);
  ptx::mma_m16n8k16<T>(*reinterpret_cast<float(*)[4]>(d + 4), a, b + 2);
}
}  // namespace mma

// d = A Bᵀ over the columns of a head: A [16, Head], B [N, Head].
template <class T, int Head, int N>
__device__ __forceinline__ void multiply_nt(float (&d)[N / 2], std::uint32_t a_at, std::uint32_t b_at) {
  constexpr std::uint32_t pitch = mma_attention_shape<Head>::pitch;
  const std::uint32_t lane = threadIdx.x % 32, left = a_at + lane % 16 * pitch + lane / 16 * 16,
                      right = b_at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[i] = 0;
#pragma unroll
  for (int k = 0; k < Head / 16; ++k) {
    std::uint32_t a[4];
    ptx::load_matrix(a, left + k * 32);
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      std::uint32_t b[4];
      ptx::load_matrix(b, right + j * 16 * pitch + k * 32);
      mma::multiply_pair<T>(d + 8 * j, a, b);
    }
  }
}
// d += P B with P [16, 16 Steps] in registers and B [16 Steps, Head] row-major in shared memory.
template <class T, int Head, int Steps>
__device__ __forceinline__ void multiply_trans_b(float (&d)[Head / 2], const std::uint32_t (&p)[Steps][4],
                                                 std::uint32_t b_at) {
  constexpr std::uint32_t pitch = mma_attention_shape<Head>::pitch;
  const std::uint32_t lane = threadIdx.x % 32, right = b_at + lane % 16 * pitch + lane / 16 * 16;
#pragma unroll
  for (int k = 0; k < Steps; ++k)
#pragma unroll
    for (int n = 0; n < Head / 16; ++n) {
      std::uint32_t b[4];
      ptx::load_matrix_trans(b, right + k * 16 * pitch + n * 32);
      mma::multiply_pair<T>(d + 8 * n, p[k], b);
    }
}
// Writes a warp's 16 rows, beginning at `row`, scaled by `upper` (rows 0 to 7) and `lower` (rows 8 to 15); rows at or
// after `limit` are not written.
template <class T, int Head>
__device__ __forceinline__ void write_rows(T* to, long long pitch, int row, int limit, const float (&d)[Head / 2],
                                           float upper, float lower) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + lane / 4 + 8 * h;
    if (r >= limit) continue;
    const float f = h == 0 ? upper : lower;
    auto* const at = reinterpret_cast<std::uint32_t*>(to + r * pitch) + lane % 4;
#pragma unroll
    for (int n = 0; n < Head / 8; ++n) at[4 * n] = pack<T>(d[4 * n + 2 * h] * f, d[4 * n + 2 * h + 1] * f);
  }
}

// Attention ranges of a tile of 64 rows; every warp holds all of them, two rows per lane.
struct row_ranges {
  int low[2], high[2];  // an empty range has low = INT_MAX and high = 0
  __device__ row_ranges(const attention_ranges& s, int row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + i * 32 + static_cast<int>(threadIdx.x % 32);
      low[i] = INT_MAX, high[i] = 0;
      if (r >= s.rows) continue;
      const int first = s.first(r), end = s.end(r);
      if (end > first) low[i] = first, high[i] = end;
    }
  }
  __device__ int first() const { return __reduce_min_sync(~0U, ::min(low[0], low[1])); }
  __device__ int end() const { return __reduce_max_sync(~0U, ::max(high[0], high[1])); }
  // The first key block at or after `block` that a row attends to; INT_MAX where there is none.
  template <int Keys> __device__ int from(int block) const {
    int next = INT_MAX;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (high[i] > block * Keys) next = ::min(next, ::max(low[i] / Keys, block));
    return __reduce_min_sync(~0U, next);
  }
  // Returns true if every row attends to all keys of the block, so that it needs no mask.
  template <int Keys> __device__ bool whole(int block) const {
    return __all_sync(~0U, low[0] <= block * Keys && high[0] >= (block + 1) * Keys && low[1] <= block * Keys &&
                               high[1] >= (block + 1) * Keys);
  }
};

}  // namespace graft::gpu
