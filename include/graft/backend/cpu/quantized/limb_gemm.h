// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM and GEMV of a quantized weight by int8 matrix instructions of NEON (neon_int8.h),
//     y = Σ_b scale_b (Σ_k q_k x_k)
// where activations and 4-bit table values are sums of limbs, signed bytes to the base 256 (activation_limbs.h). A
// stored value is looked up once for up to four tokens. Integer sums are not rounded; only the sums of chunks of a row
// are added as floats. Of the products of limbs i and j those with i + j <= 2 count. Each i + j has an integer sum
// s_{i+j}, and a chunk of columns adds
//     sum += scale (256² s0 + 256 s1 + s2)
#pragma once
#include <graft/backend/cpu/quantized/activation_limbs.h>
#include <graft/backend/cpu/quantized/weight_limbs.h>
#include <graft/core/array_size.h>

#include <type_traits>
#include <utility>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

inline float32x4_t value_of(int32x4_t s0, int32x4_t s1, int32x4_t s2) {
  return vfmaq_n_f32(vcvtq_f32_s32(vmlaq_n_s32(s2, s1, 256)), vcvtq_f32_s32(s0), 65536.0F);
}

// The sums of one register of rows and one register of tokens.
struct full_sums {
  static constexpr int groups = 1;        // registers of rows
  static constexpr int x_bytes = 3 * 16;  // bytes of the limbs of x for the columns of a register
  int32x4_t s[3];
  float32x4_t sum = vdupq_n_f32(0);

  void begin() { s[0] = s[1] = s[2] = vdupq_n_s32(0); }
  template <std::size_t Limbs> void add(int, const int8x16_t (&quants)[Limbs], const signed char* x) {
    for (std::size_t i = 0; i < Limbs; ++i)
      for (std::size_t j = 0; i + j < 3; ++j) s[i + j] = int8_mma(s[i + j], quants[i], vld1q_s8(x + 16 * j));
  }
  void end(float32x4_t scale) { sum = vfmaq_f32(sum, value_of(s[0], s[1], s[2]), scale); }
  // out[r + t stride] += sign · sum for at most `rows` rows and `tokens` tokens.
  void store_sums(float sign, float* out, long long stride, long long rows, long long tokens) const {
    if constexpr (mma_rows == 1) {
      if (rows > 0) *out += sign * vaddvq_f32(sum);
    } else {
      for (int r = 0; r < 2 && r < rows; ++r)
        for (int t = 0; t < 2 && t < tokens; ++t) out[r + t * stride] += sign * sum[2 * r + t];
    }
  }
};

// The sums of four rows and one token if a register takes two rows and two tokens: neighboring limbs of the token take
// the places of two tokens, so that `rest` holds s1 and s2. `first` holds s0 and a sum that is not used.
struct single_token_sums {
  static constexpr int groups = 2;
  static constexpr int x_bytes = 4 * 8;
  int32x4_t first[2], rest[2];
  float32x4_t sum = vdupq_n_f32(0);

  void begin() { first[0] = first[1] = rest[0] = rest[1] = vdupq_n_s32(0); }
  template <std::size_t Limbs> void add(int group, const int8x16_t (&quants)[Limbs], const signed char* x) {
    first[group] = int8_mma(first[group], quants[0], vld1q_s8(x + 8));
    rest[group] = int8_mma(rest[group], quants[0], vld1q_s8(x + 16));
    if constexpr (Limbs == 3) {
      rest[group] = int8_mma(rest[group], quants[1], vld1q_s8(x + 8));
      rest[group] = int8_mma(rest[group], quants[2], vld1q_s8(x));
    }
  }
  void end(float32x4_t scale) {
    const int32x4_t s0 = vuzp1q_s32(first[0], first[1]), s1 = vuzp1q_s32(rest[0], rest[1]),
                    s2 = vuzp2q_s32(rest[0], rest[1]);
    sum = vfmaq_f32(sum, value_of(s0, s1, s2), scale);
  }
  void store_sums(float sign, float* out, long long, long long rows, long long) const {
    for (int r = 0; r < 4 && r < rows; ++r) out[r] += sign * sum[r];
  }
};

}  // namespace graft::cpu::detail
#endif

namespace graft::cpu {

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace detail {

// Rows [row, row + rows) of w times Tokens groups of tokens from `group` on, which have `tokens` tokens left. Row has
// an index for each Sums along the rows.
template <class Sums, int Tokens, class Format, std::size_t... Row>
[[gnu::noinline, gnu::hot]] void limb_tile(std::index_sequence<Row...>, const Format& w, const activation_limbs& x,
                                           long long columns, long long row, long long rows, long long group,
                                           long long tokens, float sign, float* out, long long stride) {
  constexpr int rows_per_sum = Sums::groups * mma_rows, groups = sizeof...(Row) * Sums::groups;
  // An empty asm is a scheduling barrier, without which g++ starts so many steps at once that it spills sums.
  constexpr bool limit_unrolling = Sums::groups == 2 || (mma_rows == 2 && Tokens == 2 && Format::limbs == 1);
  auto rows_from = [&](std::size_t r) {
    long long at[array_size(rows_per_sum)];
    for (int i = 0; i < rows_per_sum; ++i)
      at[i] = row + std::min(static_cast<long long>(r) * rows_per_sum + i, rows - 1);
    return typename Format::template rows<rows_per_sum>(w, at);
  };
  const typename Format::template rows<rows_per_sum> quants[] = {rows_from(Row)...};
  Sums sums[sizeof...(Row)][array_size(Tokens)];
  const long long chunk = w.chunk();
  long long k = 0, p = 0;
  do {  // do, not while: no loop is empty, and a compiler that does not know this copies all sums
    const long long first = k, end = Format::whole_chunks ? k + chunk : std::min(columns, k + chunk);
    for (auto& of_rows : sums)
      for (Sums& s : of_rows) s.begin();
    do {
      uint8x16_t read[array_size(groups)][array_size(Format::load_registers)];
#pragma GCC unroll 8
      for (int g = 0; g < groups; ++g) quants[g / Sums::groups].read(g % Sums::groups, k, read[g]);
#pragma GCC unroll 4
      for (int i = 0; i < registers_per_32_columns; ++i) {
        if constexpr (limit_unrolling) asm volatile("");
#pragma GCC unroll 8
        for (int g = 0; g < groups; ++g) {
          int8x16_t limbs[Format::limbs];
          quants[g / Sums::groups].limbs_of(read[g], i, limbs);
          for (int t = 0; t < Tokens; ++t)
            sums[g / Sums::groups][t].add(g % Sums::groups, limbs, x.at(group + t, k) + i * Sums::x_bytes);
        }
      }
    } while ((k += 32) < end);
#pragma GCC unroll 4
    for (std::size_t r = 0; r < sizeof...(Row); ++r) {
      const float32x4_t scale = quants[r].scale(first);
      for (int t = 0; t < Tokens; ++t) sums[r][t].end(vmulq_f32(scale, broadcast_tokens(x.scales(group + t, p))));
    }
  } while (++p, k < columns);
#pragma GCC unroll 4
  for (std::size_t r = 0; r < sizeof...(Row); ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) {
      const long long i = static_cast<long long>(r) * rows_per_sum, j = t * mma_rows;
      sums[r][t].store_sums(sign, out + i + j * stride, stride, rows - i, tokens - j);
    }
}

// out[i + t stride] += sign · (row first + i of w) · x_t for `rows` rows. The register tile is as large as the
// registers allow. Returns false, with nothing done, if x cannot be split into limbs.
template <class Format>
bool limb_gemm_of(Format w, const weight_view& all, long long first, long long rows, const float* from,
                  long long tokens, float sign, float* out, long long stride) {
  thread_local activation_limbs x;
  if (!x.make(from, all.cols, tokens, w.chunk(), Format::deinterleaved, Format::unit)) return false;
  using one_token = std::conditional_t<mma_rows == 2, single_token_sums, full_sums>;
  constexpr long long in_cache = 32;  // rows that stay in the cache for all tokens
  for (long long i = 0; i < rows; i += in_cache) {
    const long long end = std::min(rows, i + in_cache);
    w.begin(first + i, end - i);
    auto by = [&]<class Sums, int Rows, int Tokens>(long long group) {
      constexpr long long step = Rows * Sums::groups * mma_rows;
      const long long t = group * mma_rows;
      for (long long r = i; r < end; r += step)
        limb_tile<Sums, Tokens>(std::make_index_sequence<array_size(Rows)>(), w, x, all.cols, first + r,
                                std::min(step, end - r), group, tokens - t, sign, out + r + t * stride, stride);
    };
    if (tokens == 1) {
      by.template operator()<one_token, one_token::groups == 2 ? 2 : 4, 1>(0);
      continue;
    }
    long long g = 0;
    for (; g + 2 <= x.groups(); g += 2) by.template operator()<full_sums, 2, 2>(g);
    if (g < x.groups()) by.template operator()<full_sums, 2, 1>(g);
  }
  return true;
}

}  // namespace detail

inline bool limb_gemm(const weight_view& w, long long first, long long rows, const float* x, long long tokens,
                      float sign, float* out, long long stride) {
  using namespace detail;
  auto of = [&](auto quants) { return limb_gemm_of(quants, w, first, rows, x, tokens, sign, out, stride); };
  if (is_four_bit(w.format)) return of(four_bit_limbs(w));
  if (w.format.type == dtype::int8) return of(int8_limbs{w});
  if (w.format.block_type == quant_formats::q8_0_format::ggml_type_id)
    return of(ggml_limbs<quant_formats::q8_0_format>{w});
  if (w.format.block_type == quant_formats::q4_0_format::ggml_type_id)
    return of(ggml_limbs<quant_formats::q4_0_format>{w});
  return false;
}
#else
inline bool limb_gemm(const weight_view&, long long, long long, const float*, long long, float, float*, long long) {
  return false;
}
#endif

// More tokens than this are faster with a tile of the weight that is dequantized once for all of them: a table value
// takes six limb products and an integer three, and ggml's sums end every 32 columns.
inline long long max_limb_tokens(const quant_format& format) {
  if (!detail::has_int8_mma) return 0;
  const long long two_by_two = detail::mma_rows == 2 ? 4 : 1;
  return is_four_bit(format) ? 4 * two_by_two : format.type == dtype::int8 ? 16 * two_by_two : 8 * two_by_two;
}
// Returns true if limb_gemm computes the product of this weight and number of tokens.
inline bool use_limb_gemm(const weight_view& w, long long tokens) {
  const bool in_blocks = is_four_bit(w.format) && w.cols % w.format.block == 0;
  return (in_blocks || is_scaled_integer(w.format)) && w.cols % 32 == 0 && tokens <= max_limb_tokens(w.format);
}

}  // namespace graft::cpu
