// SPDX-License-Identifier: Apache-2.0
// GEMV and skinny GEMM of a 4-bit weight with AVX (NF4, FP4, MXFP4, NVFP4, and integers in groups): the table of 16
// values is in registers, and the stored value is the index of a permutation (AVX-512 permutes 16 floats, AVX2 eight).
// The values in the upper halves of some bytes are looked up at once, then those in the lower halves, so x is
// deinterleaved once: of each 2 · lanes numbers first those that belong to upper halves. Integers have a table for each
// zero point. The scale of a block is applied to its sum. Other processors have no kernel here.
#pragma once
#include <graft/backend/cpu/quantized/dequantize.h>
#include <graft/backend/cpu/runtime/memory.h>
#include <graft/core/array_size.h>

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
  static floats broadcast(float v) { return _mm512_set1_ps(v); }
  static floats add_product(floats a, floats b, floats sum) { return _mm512_fmadd_ps(a, b, sum); }
  static float total(floats v) { return _mm512_reduce_add_ps(v); }
  static indices bytes(const unsigned char* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // The permutation reads only the lowest four bits of an index.
  floats look_up_low_nibbles(indices bytes) const { return _mm512_permutexvar_ps(bytes, all); }
  floats look_up_high_nibbles(indices bytes) const { return _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), all); }
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
  static floats broadcast(float v) { return _mm256_set1_ps(v); }
  static floats add_product(floats a, floats b, floats sum) { return _mm256_fmadd_ps(a, b, sum); }
  static float total(floats v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static indices bytes(const unsigned char* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // The permutation reads the lowest three bits of an index; bit 3, shifted to the sign, selects the half of the table.
  floats look_up_low_nibbles(indices bytes) const { return look_up(bytes, _mm256_slli_epi32(bytes, 28)); }
  floats look_up_high_nibbles(indices bytes) const {
    return look_up(_mm256_srli_epi32(bytes, 4), _mm256_slli_epi32(bytes, 24));
  }
  floats look_up(indices code, indices half) const {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, code), _mm256_permutevar8x32_ps(second, code),
                            _mm256_castsi256_ps(half));
  }
};
#endif

// The numbers that the codes of integers mean for each zero point, before they are scaled.
struct zero_point_tables {
  alignas(64) float v[16][16] = {};
  constexpr zero_point_tables() {
    for (int zero = 0; zero < 16; ++zero)
      for (int code = 0; code < 16; ++code) v[zero][code] = static_cast<float>(code - zero);
  }
};
inline constexpr zero_point_tables numbers_of_zero_point;
// Returns true if the kernels below multiply this format: rows are whole blocks, and a step is inside of one.
constexpr bool has_four_bit_permute(const quant_format& e) {
  const bool blocks = is_four_bit(e) || (e.type == dtype::f4_e2m1 && can_dequantize(e)) ||
                      (e.type == dtype::u4 && e.scaled == scale_granularity::block);
  return blocks && e.block % (2 * float_table::lanes) == 0;
}

// Some rows from `row` on times some tokens: a value is looked up once for all tokens. `deinterleaved` is x of the
// first token in the order above, followed by the other tokens.
template <int Rows, int Tokens, bool HasZeros>
void four_bit_permute_tile(const weight_view& w, const float_table& table, long long row, long long rows,
                           const float* deinterleaved, float sign, float* out, long long stride) {
  using floats = float_table::floats;
  constexpr long long lanes = float_table::lanes;
  const long long block = w.format.block, blocks = w.cols / block;
  const unsigned char* quants[array_size(Rows)];
  long long scales[array_size(Rows)];
  floats sum[array_size(Rows)][array_size(Tokens)];
  for (int r = 0; r < Rows; ++r) {
    const long long at = row + std::min<long long>(r, rows - 1);
    quants[r] = static_cast<const unsigned char*>(w.data) + at * w.cols / 2, scales[r] = at * blocks;
    for (floats& s : sum[r]) s = float_table::zero();
  }
  for (long long b = 0; b < blocks; ++b) {
    floats in_block[array_size(Rows)][array_size(Tokens)];
    for (auto& of_row : in_block)
      for (floats& s : of_row) s = float_table::zero();
    for (long long k = b * block; k < (b + 1) * block; k += 2 * lanes)
      for (int r = 0; r < Rows; ++r) {
        const auto bytes = float_table::bytes(quants[r] + k / 2);
        const float_table numbers =
            HasZeros ? float_table(numbers_of_zero_point.v[w.quant->zeros[scales[r] + b]]) : table;
        const floats upper = numbers.look_up_high_nibbles(bytes), lower = numbers.look_up_low_nibbles(bytes);
        for (int t = 0; t < Tokens; ++t) {
          const float* const x = deinterleaved + t * w.cols + k;
          in_block[r][t] = float_table::add_product(upper, float_table::load(x), in_block[r][t]);
          in_block[r][t] = float_table::add_product(lower, float_table::load(x + lanes), in_block[r][t]);
        }
      }
    for (int r = 0; r < Rows; ++r) {
      const floats scale = float_table::broadcast(scale_at(*w.quant, scales[r] + b));
      for (int t = 0; t < Tokens; ++t) sum[r][t] = float_table::add_product(in_block[r][t], scale, sum[r][t]);
    }
  }
  for (int t = 0; t < Tokens; ++t)
    for (long long r = 0; r < rows; ++r) out[r + t * stride] += sign * float_table::total(sum[r][t]);
}

// The 16 numbers of a format of has_four_bit_permute; those of integers depend on the zero point.
constexpr const float* four_bit_numbers(dtype type) {
  if (type == dtype::f4_e2m1) return quant_formats::e2m1::table;
  return type == dtype::u4 ? numbers_of_zero_point.v[0] : four_bit_table(type);
}

// out[i + t stride] += sign · (row first + i of w) · x_t for `rows` rows, which are whole blocks. The register tile is
// 2 rows by 4 or 2 tokens, or 4 rows by one token.
inline void four_bit_permute_gemm(const weight_view& w, long long first, long long rows, const float* x,
                                  long long tokens, float sign, float* out, long long stride) {
  constexpr long long lanes = float_table::lanes;
  const float_table table(four_bit_numbers(w.format.type));
  const bool lower_first = !is_four_bit(w.format), has_zeros = has_zero_points(w.format);
  thread_local memory<float> deinterleaved;
  deinterleaved.reserve(tokens * w.cols);
  for (long long t = 0; t < tokens; ++t, x += w.cols)
    for (long long k = 0; k < w.cols; ++k)
      deinterleaved.data()[t * w.cols + k / (2 * lanes) * (2 * lanes) + (k + (lower_first ? 1 : 0)) % 2 * lanes +
                           k % (2 * lanes) / 2] = x[k];
  constexpr long long in_cache = 32;  // rows that stay in the cache for all tokens
  for (long long i = 0; i < rows; i += in_cache) {
    auto by = [&]<int Rows, int Tokens>(long long t) {
      for (long long r = i, end = std::min(rows, i + in_cache); r < end; r += Rows) {
        const auto tile =
            has_zeros ? &four_bit_permute_tile<Rows, Tokens, true> : &four_bit_permute_tile<Rows, Tokens, false>;
        tile(w, table, first + r, std::min<long long>(Rows, end - r), deinterleaved.data() + t * w.cols, sign,
             out + r + t * stride, stride);
      }
    };
    long long t = 0;
    if constexpr (lanes == 16)
      for (; t + 4 <= tokens; t += 4) by.template operator()<2, 4>(t);
    for (; t + 2 <= tokens; t += 2) by.template operator()<2, 2>(t);
    for (; t < tokens; ++t) by.template operator()<4, 1>(t);
  }
}

}  // namespace graft::cpu::detail
#endif
