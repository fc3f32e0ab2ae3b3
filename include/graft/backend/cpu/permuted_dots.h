// SPDX-License-Identifier: Apache-2.0
// One token and rows of four-bit codes where an instruction permutes floats: the table is in registers, and a code is
// the index of its number. The codes in the upper halves of some bytes are looked up at once, and those in the lower
// halves, so x is taken apart once: of each piece first the numbers that belong to upper halves. Each block is summed
// before its scale is applied. AVX-512 permutes 16 floats, AVX2 eight; elsewhere there is nothing here.
#pragma once
#include <graft/backend/cpu/codes.h>
#include <graft/backend/cpu/memory.h>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace graft::cpu::detail {

#if defined(__AVX512F__)
struct float_table {
  using floats = __m512;
  using indices = __m512i;
  static constexpr long long lanes = 16;
  floats all;

  explicit float_table(const float* t) : all(load(t)) {}
  static floats load(const float* p) { return _mm512_loadu_ps(p); }
  static floats zero() { return _mm512_setzero_ps(); }
  static floats all_of(float v) { return _mm512_set1_ps(v); }
  static floats add_product(floats a, floats b, floats sum) { return _mm512_fmadd_ps(a, b, sum); }
  static float total(floats v) { return _mm512_reduce_add_ps(v); }
  static indices bytes(const unsigned char* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Only the lowest four bits of an index count.
  floats of_lower(indices bytes) const { return _mm512_permutexvar_ps(bytes, all); }
  floats of_upper(indices bytes) const { return _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), all); }
};
#else
struct float_table {
  using floats = __m256;
  using indices = __m256i;
  static constexpr long long lanes = 8;
  floats first, second;

  explicit float_table(const float* t) : first(load(t)), second(load(t + 8)) {}
  static floats load(const float* p) { return _mm256_loadu_ps(p); }
  static floats zero() { return _mm256_setzero_ps(); }
  static floats all_of(float v) { return _mm256_set1_ps(v); }
  static floats add_product(floats a, floats b, floats sum) { return _mm256_fmadd_ps(a, b, sum); }
  static float total(floats v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static indices bytes(const unsigned char* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // The lowest three bits of an index count; a fourth, where signs are, says in which half of the table.
  floats of_lower(indices bytes) const { return look_up(bytes, _mm256_slli_epi32(bytes, 28)); }
  floats of_upper(indices bytes) const { return look_up(_mm256_srli_epi32(bytes, 4), _mm256_slli_epi32(bytes, 24)); }
  floats look_up(indices code, indices half) const {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, code), _mm256_permutevar8x32_ps(second, code),
                            _mm256_castsi256_ps(half));
  }
};
#endif

// out[i] += sign (row first + i of w) x for `rows` rows, four at a time. Rows are whole blocks.
inline void permuted_dots(const weight_view& w, long long first, long long rows, const float* x, float sign,
                          float* out) {
  using table_type = float_table;
  constexpr long long lanes = table_type::lanes;
  const table_type table(w.how.codes == dtype::nf4 ? encodings::nf4_codes::table : encodings::fp4_codes::table);
  thread_local memory<float> apart;
  apart.reserve(w.cols);
  for (long long k = 0; k < w.cols; ++k)
    apart.data()[k / (2 * lanes) * (2 * lanes) + k % 2 * lanes + k % (2 * lanes) / 2] = x[k];
  const long long block = w.how.block, blocks = w.cols / block;
  for (long long i = 0; i < rows; i += 4) {
    const long long n = std::min(4LL, rows - i);
    const unsigned char* codes[4];
    long long row[4];
    table_type::floats sum[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = first + i + std::min<long long>(r, n - 1), sum[r] = table_type::zero();
      codes[r] = static_cast<const unsigned char*>(w.codes) + row[r] * w.cols / 2;
    }
    for (long long b = 0; b < blocks; ++b) {
      table_type::floats in_block[4];
      for (auto& s : in_block) s = table_type::zero();
      for (long long k = b * block; k < (b + 1) * block; k += 2 * lanes) {
        const auto x_upper = table_type::load(apart.data() + k), x_lower = table_type::load(apart.data() + k + lanes);
        for (int r = 0; r < 4; ++r) {
          const auto bytes = table_type::bytes(codes[r] + k / 2);
          in_block[r] = table_type::add_product(table.of_upper(bytes), x_upper, in_block[r]);
          in_block[r] = table_type::add_product(table.of_lower(bytes), x_lower, in_block[r]);
        }
      }
      for (int r = 0; r < 4; ++r)
        sum[r] =
            table_type::add_product(in_block[r], table_type::all_of(scale_at(*w.beside, row[r] * blocks + b)), sum[r]);
    }
    for (long long r = 0; r < n; ++r) out[i + r] += sign * table_type::total(sum[r]);
  }
}

}  // namespace graft::cpu::detail
#endif
