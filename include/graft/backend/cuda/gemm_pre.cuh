// SPDX-License-Identifier: Apache-2.0
// The pre slot of gemm: what a thread holds of a 64 x 64 tile of x ⊙ pre, as the left operand of four products. The
// factors of a step are asked for two steps before.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>

namespace graft::cuda {

template <class T> struct scaled_input {
  std::uint32_t x[4][4], factor[8];

  __device__ __forceinline__ void load_factors(const void* pre, const gemm_consumer& c, int step) {
    const auto* from = static_cast<const std::uint32_t*>(pre) + step * 32 + c.lane % 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) factor[i] = __ldg(from + 4 * i);
  }
  // `tile`: 128 rows of x in shared memory, of which this warpgroup has 64.
  __device__ __forceinline__ void load(std::uint32_t tile, const gemm_consumer& c) {
    const int row = c.warp * 16 + c.lane % 16;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
      ptx::load_matrix(x[kk], tile + (c.group * 64 + row) * 128 + (((2 * kk + c.lane / 16) ^ (row & 7)) << 4));
#pragma unroll
    for (int e = 0; e < 16; ++e) x[e / 4][e % 4] = times<T>(x[e / 4][e % 4], factor[e / 4 * 2 + e % 4 / 2]);
  }
};

}  // namespace graft::cuda
