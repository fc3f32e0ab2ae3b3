// SPDX-License-Identifier: Apache-2.0
// One token and rows of whole numbers: int8 with a scale for a row, Q8_0 and Q4_0 of ggml with one for 32 columns,
//     y = sum_b scale_b (sum_k code_k x_k).
// AVX makes floats of the codes in registers. NEON multiplies bytes: a code is one digit, x is three (digit_dots.h), so
// that 16 columns are three instructions. Elsewhere codes are decoded first.
#pragma once
#include <graft/backend/cpu/digit_dots.h>
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
#elif defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_NEON) && !defined(__CUDACC__)
struct whole_x {
  static constexpr bool exists = true;
  digits_of_x digits;
  using sums = float32x4_t;

  bool make(const float* from, long long n) { return digits.make(from, n, whole_piece, false); }
  static sums zero() { return vdupq_n_f32(0); }
  static float total(sums v) { return vaddvq_f32(v); }
  static float half(std::uint16_t bits) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
  }
  sums add(sums part, float scale, sums to, long long k) const {
    return vfmaq_n_f32(to, part, scale * digits.scale(k / whole_piece) * (whole_digits / 16384.0F));
  }
  sums of(int8x16_t low, int8x16_t high, long long k) const {
    int32x4_t s[3];
    for (int d = 0; d < 3; ++d)
      s[d] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), low, digits.at(d, k)), high, digits.at(d, k + 16));
    const int32x4_t rest = vaddq_s32(vshlq_n_s32(s[1], 7), s[2]);
    return vfmaq_n_f32(vcvtq_f32_s32(rest), vcvtq_f32_s32(s[0]), 16384.0F);
  }
  sums eight_bits(const unsigned char* codes, long long k) const {
    const auto* const p = reinterpret_cast<const signed char*>(codes);
    return of(vld1q_s8(p), vld1q_s8(p + 16), k);
  }
  sums four_bits(const unsigned char* codes, long long k) const {
    const uint8x16_t bytes = vld1q_u8(codes);
    const int8x16_t eight = vdupq_n_s8(8);
    return of(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), eight),
              vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), eight), k);
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
