// SPDX-License-Identifier: Apache-2.0
// GEMM without tensor cores (SIMT): float in full precision, and 16-bit types of any size and alignment.
//
// y = epilogue(prologue(x) Wᵀ + U Bᵀ) with the operands and the two launches of sm80_mma.cuh: U = x Aᵀ comes from an
// earlier launch. A block of 256 threads computes 64 x 64, 16 of k per step; a thread 4 x 4.
#pragma once
#include <graft/backend/gpu/kernels/gemm/tile_args.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

namespace simt {
inline constexpr int tile = 64, deep = 16, threads = 256, pitch = tile + 4;

// Copies 64 rows x 16 columns of a matrix (stored transposed where `nn`) to shared memory as [column][row], with zeros
// beyond the matrix and an optional factor per column (the prologue).
template <class T>
__device__ __forceinline__ void copy_tile(float (&to)[deep][pitch], const T* from, long long rows, int cols,
                                          long long row0, int col0, bool nn, const T* factor = nullptr) {
#pragma unroll
  for (int e = threadIdx.x; e < tile * deep; e += threads) {
    const int row = e / deep, col = e % deep;
    const bool inside = row0 + row < rows && col0 + col < cols;
    const long long at = nn ? (col0 + col) * rows + row0 + row : (row0 + row) * cols + col0 + col;
    const float v = inside ? to_float(from[at]) : 0.0F;
    to[col][row] = inside && factor != nullptr ? v * to_float(factor[col0 + col]) : v;
  }
}
}  // namespace simt

template <class T> __global__ void __launch_bounds__(simt::threads) gemm_simt_kernel(const tile_args g) {
  using namespace simt;
  __shared__ float x[deep][pitch], w[deep][pitch];
  const long long m0 = static_cast<long long>(blockIdx.y) * tile;
  const int n0 = static_cast<int>(blockIdx.x) * tile;
  const int tm = static_cast<int>(threadIdx.x / 16) * 4, tn = static_cast<int>(threadIdx.x % 16) * 4;
  float acc[4][4] = {};
  auto accumulate = [&](const T* left, const T* right, int cols, bool nn, const T* prologue) {
    for (int k = 0; k < cols; k += deep) {
      copy_tile(x, left, g.m, cols, m0, k, false, prologue);
      copy_tile(w, right, g.n, cols, n0, k, nn);
      __syncthreads();
#pragma unroll
      for (int kk = 0; kk < deep; ++kk)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(x[kk][tm + i], w[kk][tn + j], acc[i][j]);
      __syncthreads();
    }
  };
  accumulate(static_cast<const T*>(g.x), static_cast<const T*>(g.w), g.k, g.nn,
             static_cast<const T*>(g.adapter.prologue));
  if (g.rank() > 0)
    accumulate(static_cast<const T*>(g.u), static_cast<const T*>(g.adapter.b), g.rank(), false, nullptr);
  const epilogue_args<T> epilogue = g.template epilogue<T>();
  T* y = static_cast<T*>(g.y);
  // Rows are shifted through acc[0], because registers cannot be indexed; unrolling all rows would make the code four
  // times as long.
#pragma unroll 1
  for (long long row = m0 + tm; row < m0 + tm + 4; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = n0 + tn + j;
      if (row < g.m && col < g.n) {
        if (g.before != nullptr) static_cast<T*>(g.before)[row * g.n + col] = from_float<T>(acc[0][j]);
        y[row * g.n + col] = from_float<T>(epilogue(acc[0][j], row, col));
      }
#pragma unroll
      for (int i = 0; i < 3; ++i) acc[i][j] = acc[i + 1][j];
    }
  }
}

}  // namespace graft::gpu
