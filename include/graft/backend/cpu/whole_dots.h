// SPDX-License-Identifier: Apache-2.0
// One token and rows of whole numbers: int8 with a scale for a row, Q8_0 and Q4_0 of ggml with one for 32 columns,
//     y = sum_b scale_b (sum_k code_k x_k).
// AVX makes floats of the codes in registers. NEON multiplies bytes (digit_dots.h). Elsewhere codes are decoded first.
#pragma once
#include <graft/backend/cpu/permuted_dots.h>

namespace graft::cpu {

namespace detail {

inline constexpr long long whole_piece = 32;  // columns that are summed at once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
struct whole_x {
  static constexpr bool exists = true;
  const float* x;
  float_table nibbles{four_bit_wholes};
  using sums = float_table::floats;
  static constexpr float four_bit_wholes[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

  bool make(const float* from, long long) { return x = from, true; }
  static sums zero() { return float_table::zero(); }
  static float total(sums v) { return float_table::total(v); }
  static float half(std::uint16_t bits) { return _cvtsh_ss(bits); }
  static sums add(sums part, float scale, sums to, long long) {
    return float_table::add_product(part, float_table::all_of(scale), to);
  }
  static sums wholes(const unsigned char* p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
  }
  sums eight_bits(const unsigned char* codes, long long k) const {
    sums s = zero();
    for (long long j = 0; j < whole_piece; j += float_table::lanes)
      s = float_table::add_product(wholes(codes + j), float_table::load(x + k + j), s);
    return s;
  }
  // The lower halves of 16 bytes are the first 16 columns.
  sums four_bits(const unsigned char* codes, long long k) const {
    sums s = zero();
    for (long long j = 0; j < whole_piece / 2; j += float_table::lanes) {
      const auto bytes = float_table::bytes(codes + j);
      s = float_table::add_product(nibbles.of_lower(bytes), float_table::load(x + k + j), s);
      s = float_table::add_product(nibbles.of_upper(bytes), float_table::load(x + k + whole_piece / 2 + j), s);
    }
    return s;
  }
};
#else
struct whole_x {
  static constexpr bool exists = false;
};
#endif

// out[i] += sign (row first + i of w) x for `rows` rows.
template <class X>
void add_whole_dots(const weight_view& w, long long first, long long rows, const X& x, float sign, float* out) {
  const auto* const codes = static_cast<const unsigned char*>(w.codes);
  const bool in_blocks = w.how.codes == dtype::ggml;
  const bool wide = !in_blocks || w.how.block_type == encodings::q8_0_codes::number_in_files;
  const long long bytes = in_blocks ? w.how.block_bytes : whole_piece, pieces = w.cols / whole_piece;
  for (long long i = 0; i < rows; ++i) {
    const unsigned char* block = codes + (first + i) * pieces * bytes;
    auto sum = X::zero();
    for (long long k = 0; k < w.cols; k += whole_piece, block += bytes) {
      const float scale = in_blocks ? X::half(static_cast<std::uint16_t>(block[0] | block[1] << 8)) : 1.0F;
      const unsigned char* const from = in_blocks ? block + 2 : block;
      sum = x.add(wide ? x.eight_bits(from, k) : x.four_bits(from, k), scale, sum, k);
    }
    const float by = in_blocks ? 1.0F : encodings::int8_codes::number(1, scale_at(*w.beside, first + i));
    out[i] += sign * by * X::total(sum);
  }
}

}  // namespace detail

// The same; false, with nothing done, where there are no such codes or instructions, or where numbers of x are not
// finite.
template <class X = detail::whole_x>
bool whole_dots(const weight_view& w, long long first, long long rows, const float* x, float sign, float* out) {
  if constexpr (X::exists) {
    thread_local X of_x;
    if (w.cols % detail::whole_piece != 0 || (w.how.codes != dtype::int8 && w.how.codes != dtype::ggml)) return false;
    if (!of_x.make(x, w.cols)) return false;
    detail::add_whole_dots(w, first, rows, of_x, sign, out);
    return true;
  }
  return false;
}

}  // namespace graft::cpu
