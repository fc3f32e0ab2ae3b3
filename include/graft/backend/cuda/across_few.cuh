// SPDX-License-Identifier: Apache-2.0
// y = x W with up to 16 rows of x and W read as it is stored, [inner, outputs]: dx = dy W of few tokens, 16 bits, by mma.sync.
//
// A block makes 32 outputs of all tokens; its warps take inner rows in turns of 16, several of them on their way at a time,
// and add up in their order at the end. Two rows of W make a register of the right operand: columns are permuted so that
// what a thread has of a row is contiguous.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/gemm_mma.cuh>

namespace graft::cuda {

struct across_args {
  const void *x, *w;  // [tokens, inner], [inner, outputs]
  void* y;            // [tokens, outputs]
  int tokens, inner, outputs;
};

inline constexpr int across_warps = 16, across_columns = 32, across_ahead = 4;

template <class T> struct across_block {
  const across_args& g;
  int lane, q, column;

  struct operands {
    uint2 w[4];
    std::uint32_t x[4];
  };
  // Two neighbours of a row of x.
  __device__ __forceinline__ std::uint32_t pair(int token, int at) const {
    const auto* const p = static_cast<const T*>(g.x) + static_cast<long long>(token) * g.inner + at;
    return token < g.tokens && at < g.inner ? *reinterpret_cast<const std::uint32_t*>(p) : 0U;
  }
  __device__ __forceinline__ void load(operands& to, int first) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = first + 2 * q + k % 2 + k / 2 * 8;
      const auto* const at = static_cast<const T*>(g.w) + static_cast<long long>(row) * g.outputs + column;
      to.w[k] = row < g.inner ? __ldcs(reinterpret_cast<const uint2*>(at)) : make_uint2(0, 0);
      to.x[k] = pair(lane / 4 + k % 2 * 8, first + 2 * q + k / 2 * 8);
    }
  }
  __device__ __forceinline__ static void multiply(float (&acc)[4][4], const operands& o) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // column 4 (lane / 4) + j
      const unsigned which = j % 2 == 0 ? 0x5410U : 0x7632U;
      const std::uint32_t right[2] = {__byte_perm(j < 2 ? o.w[0].x : o.w[0].y, j < 2 ? o.w[1].x : o.w[1].y, which),
                                      __byte_perm(j < 2 ? o.w[2].x : o.w[2].y, j < 2 ? o.w[3].x : o.w[3].y, which)};
      mma::multiply<T>(acc[j], o.x, right);
    }
  }
};

template <class T> __global__ void __launch_bounds__(32 * across_warps) across_few(const across_args g) {
#if __CUDA_ARCH__ >= 800
  take_turn();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const across_block<T> b{g, lane, lane % 4, static_cast<int>(blockIdx.x) * across_columns + lane / 4 * 4};
  constexpr int stride = 16 * across_warps;
  typename across_block<T>::operands held[across_ahead];
  float acc[4][4] = {};
#pragma unroll
  for (int k = 0; k < across_ahead; ++k) b.load(held[k], 16 * warp + k * stride);
  for (int first = 16 * warp; first < g.inner; first += across_ahead * stride)
#pragma unroll
    for (int k = 0; k < across_ahead; ++k) {
      b.multiply(acc, held[k]);
      b.load(held[k], first + (k + across_ahead) * stride);
    }
  __shared__ float sums[16 * 32];
  for (int w = 0; w < across_warps; ++w) {
    if (warp == w)
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        float* const at = sums + k * 32 + lane;
        *at = w == 0 ? acc[k / 4][k % 4] : *at + acc[k / 4][k % 4];
      }
    __syncthreads();
  }
  // Entry (token, column) was left by the thread that has it: row lane / 4, columns 4 (2 q) + j and 4 (2 q + 1) + j.
  const int e = static_cast<int>(threadIdx.x), token = e / across_columns, c = e % across_columns, of = c / 4;
  const int k = c % 4 * 4 + token / 8 * 2 + of % 2, from = token % 8 * 4 + of / 2;
  if (token < g.tokens)
    static_cast<T*>(g.y)[static_cast<long long>(token) * g.outputs + blockIdx.x * across_columns + c] =
        static_cast<T>(sums[k * 32 + from]);
#endif
}

template <class T> status multiply_across(cudaStream_t stream, const across_args& g) {
  return launch_chained(stream, &across_few<T>, dim3(static_cast<unsigned>(g.outputs / across_columns)),
                        dim3(32 * across_warps), "few rows across", g);
}

}  // namespace graft::cuda
