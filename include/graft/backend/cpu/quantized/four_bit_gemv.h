// SPDX-License-Identifier: Apache-2.0
// GEMV of a 4-bit weight (NF4, FP4), the main work of generation, for rows that are whole blocks,
//     y = Σ_b scale_b (Σ_k table[q_k] x_k)
// The scale of a block is applied to its sum. Processors with int8 matrix instructions use limb_gemm.h instead, and AVX
// permutes floats (four_bit_permute.h). Elsewhere a byte is looked up as its two values: one load, where permuting the
// bytes of a table takes eight instructions.
#pragma once
#include <graft/backend/cpu/quantized/four_bit_permute.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace graft::cpu {

inline constexpr bool has_four_bit_gemv = std::endian::native == std::endian::little;

namespace detail {

struct nibble_pairs {
  alignas(64) float v[256][2];
  explicit nibble_pairs(const float* table) {
    for (unsigned b = 0; b < 256; ++b) v[b][0] = table[b >> 4U], v[b][1] = table[b & 15U];
  }
};
// For NF4 and FP4, the formats of has_four_bit_kernel.
template <dtype Type> const nibble_pairs& nibble_pairs_of() {
  static const nibble_pairs all(four_bit_table(Type));
  return all;
}

using two_floats = float __attribute__((vector_size(8)));
[[gnu::always_inline]] inline two_floats two_at(const float* p) {
  two_floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
// Adds 16 elements of four rows. Each row has two sums, so that an addition need not wait for the one before it.
[[gnu::always_inline]] inline void accumulate_pairs(const nibble_pairs& pairs, const unsigned char* const (&quants)[4],
                                                    long long byte, const float* x, two_floats (&even)[4],
                                                    two_floats (&odd)[4]) {
  std::uint64_t eight[4];
  for (int r = 0; r < 4; ++r) std::memcpy(&eight[r], quants[r] + byte, 8);
#ifndef __CUDACC__  // nvcc does not know the pragma
#pragma GCC unroll 8
#endif
  for (int i = 0; i < 8; ++i) {
    const two_floats of_x = two_at(x + 2 * i);
#ifndef __CUDACC__
#pragma GCC unroll 4
#endif
    for (int r = 0; r < 4; ++r) (i % 2 == 0 ? even[r] : odd[r]) += two_at(pairs.v[eight[r] >> (8 * i) & 255U]) * of_x;
  }
}

}  // namespace detail

// Returns true if four_bit_gemv multiplies this format.
constexpr bool has_four_bit_kernel(const quant_format& e) {
#if defined(__AVX2__) && defined(__FMA__)
  return detail::has_four_bit_permute(e);
#else
  return has_four_bit_gemv && is_four_bit(e);
#endif
}
// More tokens than this are faster with a tile of the weight that is dequantized once for all of them.
#if defined(__AVX2__) && defined(__FMA__)
inline constexpr long long max_four_bit_tokens = 16;
#else
inline constexpr long long max_four_bit_tokens = 1;
#endif

// out[i + t stride] += sign · (row first + i of w) · x_t for `rows` rows.
inline void four_bit_gemv(const weight_view& w, long long first, long long rows, const float* x,
                          [[maybe_unused]] long long tokens, float sign, float* out,
                          [[maybe_unused]] long long stride) {
  using namespace detail;
#if defined(__AVX2__) && defined(__FMA__)
  return four_bit_permute_gemm(w, first, rows, x, tokens, sign, out, stride);
#endif
  if (!is_four_bit(w.format)) return;  // has_four_bit_kernel() is false
  const nibble_pairs& pairs =
      w.format.type == dtype::nf4 ? nibble_pairs_of<dtype::nf4>() : nibble_pairs_of<dtype::fp4>();
  const long long block = w.format.block, blocks = w.cols / block;
  for (long long i = 0; i < rows; i += 4) {
    const long long n = std::min(4LL, rows - i);
    const unsigned char* quants[4];
    long long row[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = first + i + std::min<long long>(r, n - 1);
      quants[r] = static_cast<const unsigned char*>(w.data) + row[r] * w.cols / 2;
    }
    two_floats sum[4] = {};
    for (long long b = 0; b < blocks; ++b) {
      two_floats even[4] = {}, odd[4] = {};
      for (long long k = b * block; k < (b + 1) * block; k += 16)
        accumulate_pairs(pairs, quants, k / 2, x + k, even, odd);
      for (int r = 0; r < 4; ++r) sum[r] += (even[r] + odd[r]) * scale_at(*w.quant, row[r] * blocks + b);
    }
    for (long long r = 0; r < n; ++r) out[i + r] += sign * (sum[r][0] + sum[r][1]);
  }
}

}  // namespace graft::cpu
