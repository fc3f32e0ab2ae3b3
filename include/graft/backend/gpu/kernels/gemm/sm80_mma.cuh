// SPDX-License-Identifier: Apache-2.0
// GEMM for sm_80 and later by mma.sync m16n8k16 and cp.async: y = epilogue(prologue(x) Wᵀ + U Bᵀ), 16-bit operands,
// float accumulators.
//
//   x [m, k]    W [n, k] (NT) or [k, n] (NN)    y [m, n]    B [n, rank]
//   U = x Aᵀ [m, rank], the shrink result, from an earlier launch of this kernel
//
// Tiles        A block of 8 warps computes 128 x 128, 32 of k per step; a warp 64 x 32. One tile per block.
// Pipeline     3 stages of shared memory filled by cp.async; 16-byte vectors are swizzled so that neither the copies
//              nor ldmatrix have bank conflicts. An NN weight is transposed by ldmatrix.trans.
// Branch       U and B extend the K loop after the last step of x and W.
// Limits       k is a multiple of 8. Rows and vectors beyond the matrices are filled with zeros.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/gemm/tile_args.h>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/loaders.cuh>

namespace graft::gpu {

namespace mma {
inline constexpr int tile = 128, deep = 32, stages = 3, threads = 256;
inline constexpr int stage_bytes = 2 * tile * deep * 2;

// Byte offset of the 16-byte vector `vec` of `row` in a tile with 64-byte rows, swizzled against bank conflicts.
__device__ __forceinline__ std::uint32_t vec_offset(int row, int vec) {
  return static_cast<std::uint32_t>(row * 64 + ((vec ^ ((row >> 1) & 3)) << 4));
}
// Copies the K-major tile of one operand: rows [row0, row0 + 128), columns [col0, col0 + 32) of a [rows, cols] matrix.
template <class T>
__device__ __forceinline__ void copy_tile(std::uint32_t to, const T* from, long long rows, int cols, long long row0,
                                          int col0) {
  copy_tile_async<tile, 4, threads>(
      static_cast<int>(threadIdx.x), [&](int row, int vec) { return to + vec_offset(row, vec); },
      [&](int row, int vec) -> vector_source {
        const int col = col0 + vec * 8;
        const bool inside = row0 + row < rows && col < cols;
        return {inside ? from + (row0 + row) * cols + col : from, inside};
      });
}
// MN-major tile of an NN weight, stored [cols, rows]: one row of 256 bytes per element of K.
__device__ __forceinline__ std::uint32_t mn_major_offset(int inner, int vec) {
  return static_cast<std::uint32_t>(inner * 256 + ((vec ^ (inner & 7)) << 4));
}
template <class T>
__device__ __forceinline__ void copy_tile_nn(std::uint32_t to, const T* from, int rows, int cols, int row0, int col0) {
  copy_tile_async<deep, 16, threads>(
      static_cast<int>(threadIdx.x), [&](int inner, int vec) { return to + mn_major_offset(inner, vec); },
      [&](int inner, int vec) -> vector_source {
        const int row = row0 + vec * 8;
        const bool inside = col0 + inner < cols && row < rows;
        return {inside ? from + (col0 + inner) * static_cast<long long>(rows) + row : from, inside};
      });
}
}  // namespace mma

template <class T> __device__ __forceinline__ void multiply_by_mma(const tile_args& g) {
#if __CUDA_ARCH__ >= 800
  using namespace mma;
  __shared__ alignas(128) std::uint8_t ring[stages * stage_bytes];
  const std::uint32_t base = ptx::shared_address(ring);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
  const long long m0 = static_cast<long long>(blockIdx.y) * tile;
  const int n0 = static_cast<int>(blockIdx.x) * tile;
  const int k_steps = (g.k + deep - 1) / deep, steps = k_steps + (g.rank() + deep - 1) / deep;

  auto fill = [&](int step) {
    if (step < steps) {
      const std::uint32_t to = base + step % stages * stage_bytes;
      const bool branch = step >= k_steps;
      const int col = (branch ? step - k_steps : step) * deep, cols = branch ? g.rank() : g.k;
      copy_tile(to, static_cast<const T*>(branch ? g.u : g.x), g.m, cols, m0, col);
      if (g.nn && !branch)
        copy_tile_nn(to + stage_bytes / 2, static_cast<const T*>(g.w), g.n, cols, n0, col);
      else
        copy_tile(to + stage_bytes / 2, static_cast<const T*>(branch ? g.adapter.b : g.w), g.n, cols, n0, col);
    }
    ptx::commit_copies();
  };
  float acc[4][4][4] = {};
  for (int s = 0; s < stages - 1; ++s) fill(s);
  for (int step = 0; step < steps; ++step) {
    ptx::wait_for_copies<stages - 2>();
    __syncthreads();
    fill(step + stages - 1);
    const std::uint32_t x = base + step % stages * stage_bytes, w = x + stage_bytes / 2;
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
      std::uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::load_matrix(a[i], x + vec_offset(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
      if (g.adapter.prologue != nullptr && step < k_steps) {
        const auto* prologue = static_cast<const std::uint32_t*>(g.adapter.prologue) + step * 16 + kk * 8 + lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) a[i][e] = times<T>(a[i][e], __ldg(prologue + e / 2 * 4));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)  // sixteen rows of W: two B fragments of eight
        if (g.nn && step < k_steps)
          ptx::load_matrix_trans(
              b[j], w + mn_major_offset(kk * 16 + lane % 8 + lane / 8 % 2 * 8, (warp_n + j * 16) / 8 + lane / 16));
        else
          ptx::load_matrix(b[j], w + vec_offset(warp_n + j * 16 + lane % 8 + lane / 16 * 8, kk * 2 + (lane / 8) % 2));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::mma_m16n8k16<T>(acc[i][j], a[i], &b[j / 2][j % 2 * 2]);
    }
  }
  const epilogue_args<T> epilogue = g.template epilogue<T>();
  T* y = static_cast<T*>(g.y);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const long long row = m0 + warp_m + i * 16 + lane / 4 + 8 * (e >> 1);
        const int col = n0 + warp_n + j * 8 + (lane % 4) * 2 + (e & 1);
        if (row >= g.m || col >= g.n) continue;
        if (g.before != nullptr) static_cast<T*>(g.before)[row * g.n + col] = from_float<T>(acc[i][j][e]);
        y[row * g.n + col] = from_float<T>(epilogue(acc[i][j][e], row, col));
      }
#endif
}
// OnHopper: also compiled for sm_90a, where most layer types need only the sm90 kernels (capabilities.h).
template <class T, bool OnHopper> __global__ void __launch_bounds__(mma::threads) gemm_mma_kernel(const tile_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool launched = OnHopper;
#else
  constexpr bool launched = true;
#endif
  if constexpr (launched) multiply_by_mma<T>(g);
}

}  // namespace graft::gpu
