// SPDX-License-Identifier: Apache-2.0
// Horizontal sums of a register tile: the epilogue of a skinny GEMM, which ends with packets of partial sums. Reducing
// one packet after another takes longer than the multiplications if rows are short, such as the rank of an adapter.
// AVX-512 reduces sixteen packets at once, in the order in which predux reduces one, so the bits are the same.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/runtime/packets.h>

#include <algorithm>

namespace graft::cpu::detail {

// Four packets as members: compilers hold members in registers but the elements of an array in memory.
template <class Real> struct four_packets { packet<Real> a, b, c, d; };

// out[i] += sign · (the sum of packet i), for the first `rows` packets.
template <class Real> void store_sums(four_packets<Real> sum, Real sign, Real* out, long long rows) {
  using Eigen::internal::predux;
  const Real all_four[4] = {predux(sum.a), predux(sum.b), predux(sum.c), predux(sum.d)};
  for (long long i = 0; i < rows; ++i) out[i] += sign * all_four[i];
}

#if defined(EIGEN_VECTORIZE_AVX512)
inline constexpr bool has_tile_reduction = true;

// Reduces each of four packets to four partial sums; quarter k of the result has those of packet k.
[[gnu::always_inline]] inline __m512 reduce_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
// The sums of sixteen packets in the order s0.a, s0.b, s0.c, s0.d, s1.a, …
[[gnu::always_inline]] inline __m512 reduce_sixteen(const four_packets<float>& s0, const four_packets<float>& s1,
                                                    const four_packets<float>& s2, const four_packets<float>& s3) {
  const __m512 a = reduce_quarters(s0.a, s1.a, s2.a, s3.a), b = reduce_quarters(s0.b, s1.b, s2.b, s3.b),
               c = reduce_quarters(s0.c, s1.c, s2.c, s3.c), d = reduce_quarters(s0.d, s1.d, s2.d, s3.d);
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_ps(c, d, 0x44), _mm512_shuffle_ps(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xDD));
}
// Adds the sums of a tile of four rows and four columns to out.
[[gnu::always_inline]] inline void store_tile(const four_packets<float>& s0, const four_packets<float>& s1,
                                              const four_packets<float>& s2, const four_packets<float>& s3, float sign,
                                              float* out, long long stride, long long rows) {
  alignas(64) float all_sums[16];
  _mm512_store_ps(all_sums, _mm512_mul_ps(_mm512_set1_ps(sign), reduce_sixteen(s0, s1, s2, s3)));
  for (int j = 0; j < 4; ++j, out += stride) {
    if (rows == 4) {
      _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), _mm_load_ps(all_sums + 4 * j)));
      continue;
    }
    for (long long i = 0; i < rows; ++i) out[i] += all_sums[4 * j + i];
  }
}

// GEMV with rows of at most this many elements, sixteen rows at a time. The last packet of a row is padded with zeros.
inline constexpr long long short_row_max = 64;
inline void short_row_gemv(const gemm_problem<float>& c) {
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
    const __m512 sums = _mm512_mul_ps(_mm512_set1_ps(c.sign), reduce_sixteen(s[0], s[1], s[2], s[3]));
    _mm512_mask_storeu_ps(c.out + i, some, _mm512_add_ps(_mm512_maskz_loadu_ps(some, c.out + i), sums));
  }
}
#else
inline constexpr bool has_tile_reduction = false;
inline constexpr long long short_row_max = 0;
template <class Product> void short_row_gemv(const Product&) = delete;
#endif

}  // namespace graft::cpu::detail
