// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM with an NN weight, sm_80 and later: y = x W for up to 16 tokens with W read as it is stored, dx = dy W of
// few tokens. 16 bits, mma.sync m16n8k16, float accumulators.
//
//   x [tokens, inner]    W [inner, outputs]    y [tokens, outputs]; outputs is a multiple of 32
//
// Work split   A block of 16 warps computes 32 outputs of all tokens; warp w takes the rows of W in 16-row steps w, w +
//              16, …, with four steps in flight in registers.
// Fragments    Columns are permuted among the fragments, so that a thread loads contiguous elements of a row of W and
//              builds the B fragments by byte permutes of two rows.
// Reduction    Over the warps in their order, in shared memory: deterministic.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

struct skinny_nn_args {
  const void *x, *w;  // [tokens, inner], [inner, outputs]
  void* y;            // [tokens, outputs]
  int tokens, inner, outputs;
};

inline constexpr int nn_warps = 16, nn_block_columns = 32, nn_prefetch = 4;

template <class T> struct skinny_nn_block {
  const skinny_nn_args& g;
  int lane, q, column;

  struct operands {
    uint2 w[4];
    std::uint32_t x[4];
  };
  // Two neighbouring elements of a row of x; zeros outside.
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
      ptx::mma_m16n8k16<T>(acc[j], o.x, right);
    }
  }
};

template <class T> __global__ void __launch_bounds__(32 * nn_warps) skinny_nn_kernel(const skinny_nn_args g) {
#if __CUDA_ARCH__ >= 800
  pdl_begin();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const skinny_nn_block<T> b{g, lane, lane % 4, static_cast<int>(blockIdx.x) * nn_block_columns + lane / 4 * 4};
  constexpr int stride = 16 * nn_warps;
  typename skinny_nn_block<T>::operands held[nn_prefetch];
  float acc[4][4] = {};
#pragma unroll
  for (int k = 0; k < nn_prefetch; ++k) b.load(held[k], 16 * warp + k * stride);
  for (int first = 16 * warp; first < g.inner; first += nn_prefetch * stride)
#pragma unroll
    for (int k = 0; k < nn_prefetch; ++k) {
      b.multiply(acc, held[k]);
      b.load(held[k], first + (k + nn_prefetch) * stride);
    }
  __shared__ float sums[16 * 32];
  for (int w = 0; w < nn_warps; ++w) {
    if (warp == w)
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        float* const at = sums + k * 32 + lane;
        *at = w == 0 ? acc[k / 4][k % 4] : *at + acc[k / 4][k % 4];
      }
    __syncthreads();
  }
  // Accumulator k and lane `from` that hold entry (token, c): a lane has tokens lane / 4 and lane / 4 + 8.
  const int e = static_cast<int>(threadIdx.x), token = e / nn_block_columns, c = e % nn_block_columns, of = c / 4;
  const int k = c % 4 * 4 + token / 8 * 2 + of % 2, from = token % 8 * 4 + of / 2;
  if (token < g.tokens)
    static_cast<T*>(g.y)[static_cast<long long>(token) * g.outputs + blockIdx.x * nn_block_columns + c] =
        static_cast<T>(sums[k * 32 + from]);
#endif
}

template <class T> status multiply_nn(cudaStream_t stream, const skinny_nn_args& g) {
  return launch_pdl(stream, &skinny_nn_kernel<T>, dim3(static_cast<unsigned>(g.outputs / nn_block_columns)),
                    dim3(32 * nn_warps), "skinny GEMM, NN weight", g);
}

}  // namespace graft::gpu
