// SPDX-License-Identifier: Apache-2.0
// Few tokens and rows of four-bit codes: what generating is made of. Each block is summed before its scale is
// applied, and rows are whole blocks:
//     y = sum_b scale_b (sum_k table[code_k] x_k)
// Where an instruction permutes floats it is used (permuted_dots.h); where one multiplies bytes that comes first
// (digit_dots.h). Elsewhere a byte is looked up as the two numbers of its codes, one load where permuting a table's bytes takes
// eight instructions.
#pragma once
#include <graft/backend/cpu/permuted_dots.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace graft::cpu {

inline constexpr bool has_four_bit_dots = std::endian::native == std::endian::little;

namespace detail {

struct byte_pairs {
  alignas(64) float v[256][2];
  explicit byte_pairs(const float* table) {
    for (unsigned b = 0; b < 256; ++b) v[b][0] = table[b >> 4U], v[b][1] = table[b & 15U];
  }
};
inline const byte_pairs& pairs_of(dtype codes) {
  static const byte_pairs nf4(encodings::nf4_codes::table), fp4(encodings::fp4_codes::table);
  return codes == dtype::nf4 ? nf4 : fp4;
}

using two_floats = float __attribute__((vector_size(8)));
[[gnu::always_inline]] inline two_floats two_at(const float* p) {
  two_floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
// 16 elements of four rows. Two sums a row, so that one addition need not wait for the one before it.
[[gnu::always_inline]] inline void add_pairs(const byte_pairs& pairs, const unsigned char* const (&codes)[4],
                                             long long byte, const float* x, two_floats (&even)[4],
                                             two_floats (&odd)[4]) {
  std::uint64_t eight[4];
  for (int r = 0; r < 4; ++r) std::memcpy(&eight[r], codes[r] + byte, 8);
#ifndef __CUDACC__  // which does not know the pragma, and compiles no program that runs on it
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

// More tokens than so many are quicker with a weight that was decoded for all of them.
#if defined(__AVX2__) && defined(__FMA__)
inline constexpr long long four_bit_tokens = 16;
#else
inline constexpr long long four_bit_tokens = 1;
#endif

// out[i + t stride] += sign (row first + i of w) x_t for `rows` rows.
inline void four_bit_dots(const weight_view& w, long long first, long long rows, const float* x,
                          [[maybe_unused]] long long tokens, float sign, float* out,
                          [[maybe_unused]] long long stride) {
  using namespace detail;
#if defined(__AVX2__) && defined(__FMA__)
  return permuted_dots(w, first, rows, x, tokens, sign, out, stride);
#endif
  const byte_pairs& pairs = pairs_of(w.how.codes);
  const long long block = w.how.block, blocks = w.cols / block;
  for (long long i = 0; i < rows; i += 4) {
    const long long n = std::min(4LL, rows - i);
    const unsigned char* codes[4];
    long long row[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = first + i + std::min<long long>(r, n - 1);
      codes[r] = static_cast<const unsigned char*>(w.codes) + row[r] * w.cols / 2;
    }
    two_floats sum[4] = {};
    for (long long b = 0; b < blocks; ++b) {
      two_floats even[4] = {}, odd[4] = {};
      for (long long k = b * block; k < (b + 1) * block; k += 16) add_pairs(pairs, codes, k / 2, x + k, even, odd);
      for (int r = 0; r < 4; ++r) sum[r] += (even[r] + odd[r]) * scale_at(*w.beside, row[r] * blocks + b);
    }
    for (long long r = 0; r < n; ++r) out[i + r] += sign * (sum[r][0] + sum[r][1]);
  }
}

}  // namespace graft::cpu
