// SPDX-License-Identifier: Apache-2.0
// The adapter as the kernels see it: packed once per change of the parameters, and found through one record in device
// memory. Writing another record there switches the adapter, also below a captured CUDA graph; only the padded rank is
// part of the captured kernel.
//     y = act(scale ⊙ (x · Wᵀ + (x · Aᵀ) · Bᵀ) + shift) + residual
#pragma once
#include <cuda.h>

namespace graft::cuda {

enum class activation : unsigned char { none, relu, gelu, silu };  // gelu: the tanh form

// Rows and columns beyond the matrix are zero: A is [rank, in], B is [out, rank], the vectors reach to the next multiple of
// column_padding; either both vectors are there or none.
inline constexpr int column_padding = 256;
constexpr int padded_rank(int rank) {
  return rank <= 0 ? 0 : rank <= 16 ? 16 : rank <= 32 ? 32 : (rank + 63) / 64 * 64;
}

struct alignas(128) adapter_slot {
  CUtensorMap a;         // boxes of 64 columns and all rows
  CUtensorMap b;         // boxes of 64 columns and 64 rows, for gemm
  CUtensorMap b_stream;  // boxes of the padded rank and 16 rows, for stream
  const void* a_data = nullptr;
  const void* b_data = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
  int rank = 0;  // padded; 0: no side branch
};

}  // namespace graft::cuda
