// SPDX-License-Identifier: Apache-2.0
// GEMV of an integer weight: int8 with a scale per row, ggml's Q8_0 and Q4_0 with a scale per 32 columns,
//     y = Σ_b scale_b (Σ_k q_k x_k)
// AVX widens the values to floats in registers. NEON multiplies int8 (limb_gemm.h). Other processors dequantize first.
#pragma once
#include <graft/backend/cpu/quantized/four_bit_permute.h>

#include <type_traits>

namespace graft::cpu {

namespace detail {

inline constexpr long long integer_chunk = 32;  // columns that are summed before they are scaled

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
struct integer_activations {
  static constexpr bool exists = true;
  const float* x;
  float_table nibbles{nibble_values};
  using sums = float_table::floats;
  static constexpr float nibble_values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

  bool make(const float* from, long long) { return x = from, true; }
  static sums zero() { return float_table::zero(); }
  static float total(sums v) { return float_table::total(v); }
  static float half(std::uint16_t bits) { return _cvtsh_ss(bits); }
  static sums add(sums part, float scale, sums to, long long) {
    return float_table::add_product(part, float_table::broadcast(scale), to);
  }
  static sums load_int8(const unsigned char* p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
  }
  sums eight_bits(const unsigned char* quants, long long k) const {
    sums s = zero();
    for (long long j = 0; j < integer_chunk; j += float_table::lanes)
      s = float_table::add_product(load_int8(quants + j), float_table::load(x + k + j), s);
    return s;
  }
  // Q4_0: the lower halves of 16 bytes are the first 16 columns.
  sums four_bits(const unsigned char* quants, long long k) const {
    sums s = zero();
    for (long long j = 0; j < integer_chunk / 2; j += float_table::lanes) {
      const auto bytes = float_table::bytes(quants + j);
      s = float_table::add_product(nibbles.look_up_low_nibbles(bytes), float_table::load(x + k + j), s);
      s = float_table::add_product(nibbles.look_up_high_nibbles(bytes),
                                   float_table::load(x + k + integer_chunk / 2 + j), s);
    }
    return s;
  }
};
#else
struct integer_activations {
  static constexpr bool exists = false;
};
#endif

// How a format stores 32 columns: the bytes of them, of which a half-precision scale may come first, and their sum with
// x. A format that is not listed here does not compile.
template <class Format> struct integer_storage;
template <> struct integer_storage<quant_formats::int8_format> {
  static constexpr bool in_blocks = false;
  static constexpr int bytes = integer_chunk;
  template <class X> static auto sum(const X& x, const unsigned char* quants, long long k) {
    return x.eight_bits(quants, k);
  }
};
template <> struct integer_storage<quant_formats::q8_0_format> {
  static constexpr bool in_blocks = true;
  static constexpr int bytes = quant_formats::q8_0_format::bytes;
  template <class X> static auto sum(const X& x, const unsigned char* quants, long long k) {
    return x.eight_bits(quants, k);
  }
};
template <> struct integer_storage<quant_formats::q4_0_format> {
  static constexpr bool in_blocks = true;
  static constexpr int bytes = quant_formats::q4_0_format::bytes;
  template <class X> static auto sum(const X& x, const unsigned char* quants, long long k) {
    return x.four_bits(quants, k);
  }
};

// out[i] += sign · (row first + i of w) · x for `rows` rows.
template <class Format, class X>
void integer_gemv_rows(const weight_view& w, long long first, long long rows, const X& x, float sign, float* out) {
  using storage = integer_storage<Format>;
  constexpr bool in_blocks = storage::in_blocks;
  constexpr long long bytes = storage::bytes;
  const auto* const quants = static_cast<const unsigned char*>(w.data);
  const long long pieces = w.cols / integer_chunk;
  for (long long i = 0; i < rows; ++i) {
    const unsigned char* block = quants + (first + i) * pieces * bytes;
    auto sum = X::zero();
    for (long long k = 0; k < w.cols; k += integer_chunk, block += bytes) {
      const float scale = in_blocks ? X::half(static_cast<std::uint16_t>(block[0] | block[1] << 8)) : 1.0F;
      const unsigned char* const from = in_blocks ? block + 2 : block;
      sum = x.add(storage::sum(x, from, k), scale, sum, k);
    }
    const float by = in_blocks ? 1.0F : quant_formats::int8_format::dequantize(1, scale_at(*w.quant, first + i));
    out[i] += sign * by * X::total(sum);
  }
}

}  // namespace detail

// Runs integer_gemv_rows. Returns false, with nothing done, for another format, on a processor without a kernel, or if
// X::make rejects x.
template <class X = detail::integer_activations>
bool integer_gemv(const weight_view& w, long long first, long long rows, const float* x, float sign, float* out) {
  if constexpr (X::exists) {
    thread_local X of_x;
    if (w.cols % detail::integer_chunk != 0 || !is_scaled_integer(w.format)) return false;
    if (!of_x.make(x, w.cols)) return false;
    using namespace quant_formats;
    if (w.format.type == dtype::int8)
      return detail::integer_gemv_rows<int8_format>(w, first, rows, of_x, sign, out), true;
    if (w.format == q8_0_format::format())
      return detail::integer_gemv_rows<q8_0_format>(w, first, rows, of_x, sign, out), true;
    if (w.format == q4_0_format::format())
      return detail::integer_gemv_rows<q4_0_format>(w, first, rows, of_x, sign, out), true;
  }
  return false;
}

}  // namespace graft::cpu
