// SPDX-License-Identifier: Apache-2.0
// The gemm family for sm_80 and later: 16-bit operands by mma.sync m16n8k16, float accumulators, two launches where
// there is a side branch (S = x Aᵀ by the same kernel, then the extension of the inner axis by S and B).
//
// A block of 8 warps computes 128 x 128, 32 deep per step, through three stages of shared memory filled by cp.async; a
// warp computes 64 x 32. Sixteen-byte pieces are swizzled so that neither copies nor ldmatrix meet a bank twice. Rows
// and pieces beyond the matrices are filled with zeros; the inner size is a multiple of 8. A weight that lies across is
// transposed on its way into registers.
#pragma once
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/tile_args.h>

namespace graft::cuda {

namespace mma {
inline constexpr int tile = 128, deep = 32, stages = 3, threads = 256;
inline constexpr int stage_bytes = 2 * tile * deep * 2;

// `bytes` is 16 or 0; the rest of the sixteen is zeroed.
__device__ __forceinline__ void copy(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
template <class T> __device__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const std::uint32_t (&a)[4],
                                                        const std::uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Where the sixteen-byte piece `piece` of row `row` lies in a tile of 64-byte rows.
__device__ __forceinline__ std::uint32_t piece_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * 64 + ((piece ^ ((row >> 1) & 3)) << 4));
}
// One operand's tile of a step: rows [row0, row0 + 128) and columns [col0, col0 + 32) of a [rows, cols] matrix.
template <class T>
__device__ __forceinline__ void copy_tile(std::uint32_t to, const T* from, long long rows, int cols, long long row0,
                                          int col0) {
#pragma unroll
  for (int e = threadIdx.x; e < tile * 4; e += threads) {
    const int row = e / 4, piece = e % 4, col = col0 + piece * 8;
    const bool inside = row0 + row < rows && col < cols;
    copy(to + piece_offset(row, piece), inside ? from + (row0 + row) * cols + col : from, inside ? 16 : 0);
  }
}
// The same of a matrix [cols, rows], which lies across: rows of 256 bytes, one for each inner element.
__device__ __forceinline__ std::uint32_t across_offset(int inner, int piece) {
  return static_cast<std::uint32_t>(inner * 256 + ((piece ^ (inner & 7)) << 4));
}
template <class T>
__device__ __forceinline__ void copy_across(std::uint32_t to, const T* from, int rows, int cols, int row0, int col0) {
#pragma unroll
  for (int e = threadIdx.x; e < tile * 4; e += threads) {
    const int inner = e / 16, piece = e % 16, row = row0 + piece * 8;
    const bool inside = col0 + inner < cols && row < rows;
    copy(to + across_offset(inner, piece), inside ? from + (col0 + inner) * static_cast<long long>(rows) + row : from,
         inside ? 16 : 0);
  }
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
      const bool side = step >= k_steps;
      const int col = (side ? step - k_steps : step) * deep, cols = side ? g.rank() : g.k;
      copy_tile(to, static_cast<const T*>(side ? g.s : g.x), g.m, cols, m0, col);
      if (g.across && !side)
        copy_across(to + stage_bytes / 2, static_cast<const T*>(g.w), g.n, cols, n0, col);
      else
        copy_tile(to + stage_bytes / 2, static_cast<const T*>(side ? g.slot.b : g.w), g.n, cols, n0, col);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float acc[4][4][4] = {};
  for (int s = 0; s < stages - 1; ++s) fill(s);
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
    __syncthreads();
    fill(step + stages - 1);
    const std::uint32_t x = base + step % stages * stage_bytes, w = x + stage_bytes / 2;
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
      std::uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::load_matrix(a[i], x + piece_offset(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
      if (g.slot.pre != nullptr && step < k_steps) {
        const auto* pre = static_cast<const std::uint32_t*>(g.slot.pre) + step * 16 + kk * 8 + lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) a[i][e] = times<T>(a[i][e], __ldg(pre + e / 2 * 4));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)  // sixteen rows of W: two operands of eight
        if (g.across && step < k_steps)
          ptx::load_matrix_across(
              b[j], w + across_offset(kk * 16 + lane % 8 + lane / 8 % 2 * 8, (warp_n + j * 16) / 8 + lane / 16));
        else
          ptx::load_matrix(b[j], w + piece_offset(warp_n + j * 16 + lane % 8 + lane / 16 * 8, kk * 2 + (lane / 8) % 2));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply<T>(acc[i][j], a[i], &b[j / 2][j % 2 * 2]);
    }
  }
  const post_slot<T> post = g.template post<T>();
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
        y[row * g.n + col] = from_float<T>(post(acc[i][j][e], row, col));
      }
#endif
}
// OnHopper: also in images for sm_90a, whose own kernels take all sizes that most layer types have (kernels_for.h).
template <class T, bool OnHopper> __global__ void __launch_bounds__(mma::threads) gemm_mma_kernel(const tile_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool launched = OnHopper;
#else
  constexpr bool launched = true;
#endif
  if constexpr (launched) multiply_by_mma<T>(g);
}

}  // namespace graft::cuda
