// SPDX-License-Identifier: Apache-2.0
// adapter_args: an adapter as GEMM kernels read it (LoRA, DoRA, IA3, … all reduce to these operands),
//
//     y = act(scale ⊙ (x Wᵀ + (x Aᵀ) Bᵀ) + shift) + residual
// or  y = act(scale ⊙ (x ⊙ prologue) Wᵀ + shift) + residual
//
// packed once per change of the parameters into device memory at fixed addresses. Switching adapters copies another
// packed adapter there in stream order, so captured launches see the new one. Only the padded rank is part of a
// captured launch.
#pragma once

namespace graft::gpu {

enum class activation : unsigned char { none, relu, silu, gelu, gelu_tanh };

// The lengths of scale and shift and the rows of the tiled B are padded to a multiple of this; padding rows of B are
// zero.
inline constexpr int row_padding = 256;
constexpr long long padded_rows(long long n) { return (n + row_padding - 1) / row_padding * row_padding; }
// Prologue factors are loaded two steps of 64 ahead, so that their vector reaches two steps further.
constexpr long long padded_inputs(long long k) { return (k + 63) / 64 * 64 + 128; }
constexpr int padded_rank(int rank) {
  return rank <= 0 ? 0 : rank <= 16 ? 16 : rank <= 32 ? 32 : (rank + 63) / 64 * 64;
}

struct adapter_args {
  // Tiled and swizzled as in shared memory, so that a bulk copy needs an address only. A: tiles of [rank][64]; B:
  // [rows][rank], or slabs of 64 columns where the rank is above 64.
  const void* a_tiles = nullptr;
  const void* b_tiles = nullptr;
  const float* scale = nullptr;    // null: ones
  const float* shift = nullptr;    // null: zeros
  const void* prologue = nullptr;  // [in], in the layer's type; null: ones. Only without a low-rank branch
  const void* b = nullptr;         // [out, rank] row-major, for the kernels without TMA
  int rank = 0;                    // padded; 0: no low-rank branch
};

}  // namespace graft::gpu
