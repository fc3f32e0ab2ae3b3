// SPDX-License-Identifier: Apache-2.0
// The adapter as the kernels see it: packed once per change of the parameters into device memory whose addresses stay.
// To switch adapters is to copy another one there, in the order of the stream: kernels captured before see the new one,
// and no kernel has to look up where its adapter lies. Only the padded rank is part of a captured kernel.
//     y = act(scale ⊙ (x · Wᵀ + (x · Aᵀ) · Bᵀ) + shift) + residual,   or   y = act(scale ⊙ (x ⊙ pre) · Wᵀ + shift) + residual
#pragma once

namespace graft::cuda {

// Named as the operations they are.
enum class activation : unsigned char { none, relu, silu, gelu, gelu_tanh };

// Columns of the post slot and rows of the tiled B reach to the next multiple of this; what is beyond the matrix is
// zero.
inline constexpr int row_padding = 256;
constexpr long long padded_rows(long long n) { return (n + row_padding - 1) / row_padding * row_padding; }
// The factors of the input are asked for two steps of 64 before they are needed.
constexpr long long padded_inputs(long long k) { return (k + 63) / 64 * 64 + 128; }
constexpr int padded_rank(int rank) {
  return rank <= 0 ? 0 : rank <= 16 ? 16 : rank <= 32 ? 32 : (rank + 63) / 64 * 64;
}

struct adapter_slot {
  // In the order and with the swizzle in which they lie in shared memory: a copy needs an address and nothing else.
  // A: tiles of [rank][64]; B: [rows][rank], or slabs of 64 columns where the rank is larger than that.
  const void* a_tiles = nullptr;
  const void* b_tiles = nullptr;
  const float* scale = nullptr;  // null: ones
  const float* shift = nullptr;  // null: zeros
  const void* pre = nullptr;     // [in], in the type of the layer; null: ones. Only without a side branch
  const void* b = nullptr;       // [out, rank], for the kernels without tensor copies
  int rank = 0;                  // padded; 0: no side branch
};

}  // namespace graft::cuda
