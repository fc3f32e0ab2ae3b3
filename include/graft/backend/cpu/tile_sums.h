// SPDX-License-Identifier: Apache-2.0
// What remains of a product of few tokens after its multiplications: packets of partial sums, each to be added up. One
// after the other that takes longer than the multiplications where rows are short (the rank of an adapter). AVX-512 adds
// up sixteen packets together, in the order in which predux adds up one: the bits are the same.
#pragma once
#include <graft/backend/cpu/by_columns.h>
#include <graft/backend/cpu/packets.h>

#include <algorithm>

namespace graft::cpu::detail {

// Four packets by name: compilers keep members in registers, and the elements of an array in memory.
template <class Real> struct four_packets { packet<Real> a, b, c, d; };

template <class Real> void give(four_packets<Real> sum, Real sign, Real* out, long long rows) {
  using Eigen::internal::predux;
  const Real all_four[4] = {predux(sum.a), predux(sum.b), predux(sum.c), predux(sum.d)};
  for (long long i = 0; i < rows; ++i) out[i] += sign * all_four[i];
}

#if defined(EIGEN_VECTORIZE_AVX512)
inline constexpr bool has_tile_sums = true;

// Of four packets: four numbers each, which are still to be added up, side by side.
[[gnu::always_inline]] inline __m512 quarter_sums(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
// The sums of s0.a, s0.b, s0.c, s0.d, s1.a and so on, in this order.
[[gnu::always_inline]] inline __m512 sixteen_sums(const four_packets<float>& s0, const four_packets<float>& s1,
                                                  const four_packets<float>& s2, const four_packets<float>& s3) {
  const __m512 a = quarter_sums(s0.a, s1.a, s2.a, s3.a), b = quarter_sums(s0.b, s1.b, s2.b, s3.b),
               c = quarter_sums(s0.c, s1.c, s2.c, s3.c), d = quarter_sums(s0.d, s1.d, s2.d, s3.d);
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_ps(c, d, 0x44), _mm512_shuffle_ps(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xDD));
}
// Four rows of four columns.
[[gnu::always_inline]] inline void give_tile(const four_packets<float>& s0, const four_packets<float>& s1,
                                             const four_packets<float>& s2, const four_packets<float>& s3, float sign,
                                             float* out, long long stride, long long rows) {
  alignas(64) float all_sums[16];
  _mm512_store_ps(all_sums, _mm512_mul_ps(_mm512_set1_ps(sign), sixteen_sums(s0, s1, s2, s3)));
  for (int j = 0; j < 4; ++j, out += stride) {
    if (rows == 4) {
      _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), _mm_load_ps(all_sums + 4 * j)));
      continue;
    }
    for (long long i = 0; i < rows; ++i) out[i] += all_sums[4 * j + i];
  }
}

// One column and rows of up to so many numbers, sixteen rows at a time. What is left of a row is read beside zeros.
inline constexpr long long short_row = 64;
inline void short_rows(const by_columns<float>& c) {
  constexpr long long width = 16;
  const long long pieces = (c.depth + width - 1) / width;
  const auto last = static_cast<__mmask16>(0xFFFFU >> (pieces * width - c.depth));
  for (long long i = 0; i < c.rows; i += 16) {
    const long long rows = std::min(16LL, c.rows - i);
    four_packets<float> s[4] = {};
    for (long long p = 0; p < pieces; ++p) {
      const __mmask16 there = p + 1 < pieces ? __mmask16{0xFFFF} : last;
      const __m512 r = _mm512_maskz_loadu_ps(there, c.right.p + p * width);
      const float* const left = c.left.p + i * c.left.row + p * width;
      auto row = [&](int k) {
        return _mm512_maskz_loadu_ps(there, left + std::min<long long>(k, rows - 1) * c.left.row);
      };
      for (int k = 0; k < 4; ++k)
        s[k] = {_mm512_fmadd_ps(row(4 * k), r, s[k].a), _mm512_fmadd_ps(row(4 * k + 1), r, s[k].b),
                _mm512_fmadd_ps(row(4 * k + 2), r, s[k].c), _mm512_fmadd_ps(row(4 * k + 3), r, s[k].d)};
    }
    const auto some = static_cast<__mmask16>(0xFFFFU >> (16 - rows));
    const __m512 sums = _mm512_mul_ps(_mm512_set1_ps(c.sign), sixteen_sums(s[0], s[1], s[2], s[3]));
    _mm512_mask_storeu_ps(c.out + i, some, _mm512_add_ps(_mm512_maskz_loadu_ps(some, c.out + i), sums));
  }
}
#else
inline constexpr bool has_tile_sums = false;
inline constexpr long long short_row = 0;
template <class Product> void short_rows(const Product&) = delete;
#endif

}  // namespace graft::cpu::detail
