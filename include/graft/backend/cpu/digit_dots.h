// SPDX-License-Identifier: Apache-2.0
// Few tokens and rows of codes by a processor's products of bytes (byte_products.h): y = sum_b scale_b (sum_k code_k x_k) with
// codes and x as digits. A code is looked up once and meets four tokens; sums of whole numbers are not rounded, and only
// pieces of a row are added as floats.
#pragma once
#include <graft/backend/cpu/digit_sums.h>
#include <graft/backend/cpu/whole_digits.h>

#include <type_traits>
#include <utility>

namespace graft::cpu {

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace detail {

// Rows [row, row + rows) of w with groups of tokens from `group` on, of which there are `tokens` tokens. As many sums of
// rows as Row has members.
template <class Sums, int Tokens, class Codes, std::size_t... Row>
[[gnu::noinline, gnu::hot]] void digit_tile(std::index_sequence<Row...>, const Codes& w, const digits_of_x& x,
                                            long long columns, long long row, long long rows, long long group,
                                            long long tokens, float sign, float* out, long long stride) {
  constexpr int some_rows = Sums::groups * product_side, groups = sizeof...(Row) * Sums::groups;
  // Nothing is moved across an empty instruction: g++ would else begin so many steps at once that sums go to memory.
  constexpr bool in_steps = Sums::groups == 2 || (product_side == 2 && Tokens == 2 && Codes::digits == 1);
  auto rows_from = [&](std::size_t r) {
    long long at[some_rows];
    for (int i = 0; i < some_rows; ++i) at[i] = row + std::min(static_cast<long long>(r) * some_rows + i, rows - 1);
    return typename Codes::template rows<some_rows>(w, at);
  };
  const typename Codes::template rows<some_rows> codes[] = {rows_from(Row)...};
  Sums sums[sizeof...(Row)][Tokens];
  const long long piece = w.piece();
  long long k = 0, p = 0;
  do {  // there is a column, and one in every piece: what the compiler does not know costs it copies of all sums
    const long long first = k, end = Codes::whole_pieces ? k + piece : std::min(columns, k + piece);
    for (auto& of_rows : sums)
      for (Sums& s : of_rows) s.begin();
    do {
      uint8x16_t read[groups][Codes::read_registers];
#pragma GCC unroll 8
      for (int g = 0; g < groups; ++g) codes[g / Sums::groups].read(g % Sums::groups, k, read[g]);
#pragma GCC unroll 4
      for (int i = 0; i < registers_of_32; ++i) {
        if constexpr (in_steps) asm volatile("");
#pragma GCC unroll 8
        for (int g = 0; g < groups; ++g) {
          int8x16_t digits[Codes::digits];
          codes[g / Sums::groups].digits_of(read[g], i, digits);
          for (int t = 0; t < Tokens; ++t)
            sums[g / Sums::groups][t].add(g % Sums::groups, digits, x.at(group + t, k) + i * Sums::x_bytes);
        }
      }
    } while ((k += 32) < end);
#pragma GCC unroll 4
    for (std::size_t r = 0; r < sizeof...(Row); ++r) {
      const float32x4_t scale = codes[r].scale(first);
      for (int t = 0; t < Tokens; ++t) sums[r][t].end(vmulq_f32(scale, for_tokens(x.scales(group + t, p))));
    }
  } while (++p, k < columns);
#pragma GCC unroll 4
  for (std::size_t r = 0; r < sizeof...(Row); ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) {
      const long long i = static_cast<long long>(r) * some_rows, j = t * product_side;
      sums[r][t].give(sign, out + i + j * stride, stride, rows - i, tokens - j);
    }
}

// out[i + t stride] += sign (row first + i of w) x_t for `rows` rows. Rows are taken four groups at a time for one group of
// tokens, two for two: as many as there are registers for. False, with nothing done, where x has no digits.
template <class Codes>
bool digit_dots_of(Codes w, const weight_view& all, long long first, long long rows, const float* from,
                   long long tokens, float sign, float* out, long long stride) {
  thread_local digits_of_x x;
  if (!x.make(from, all.cols, tokens, w.piece(), Codes::even_first, Codes::unit)) return false;
  using one_token = std::conditional_t<product_side == 2, lone_sums, full_sums>;
  constexpr long long in_cache = 32;  // rows, until all tokens have met them
  for (long long i = 0; i < rows; i += in_cache) {
    const long long end = std::min(rows, i + in_cache);
    w.begin(first + i, end - i);
    auto by = [&]<class Sums, int Rows, int Tokens>(long long group) {
      constexpr long long step = Rows * Sums::groups * product_side;
      const long long t = group * product_side;
      for (long long r = i; r < end; r += step)
        digit_tile<Sums, Tokens>(std::make_index_sequence<Rows>(), w, x, all.cols, first + r, std::min(step, end - r),
                                 group, tokens - t, sign, out + r + t * stride, stride);
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

inline bool digit_dots(const weight_view& w, long long first, long long rows, const float* x, long long tokens,
                       float sign, float* out, long long stride) {
  using namespace detail;
  auto of = [&](auto codes) { return digit_dots_of(codes, w, first, rows, x, tokens, sign, out, stride); };
  if (has_four_bits(w.how)) return of(four_bit_digits(w));
  if (w.how.codes == dtype::int8) return of(int8_digits{w});
  if (w.how.block_type == encodings::q8_0_codes::number_in_files) return of(ggml_digits<encodings::q8_0_codes>{w});
  return of(ggml_digits<encodings::q4_0_codes>{w});
}
#else
inline bool digit_dots(const weight_view&, long long, long long, const float*, long long, float, float*, long long) {
  return false;
}
#endif

// More tokens than so many are quicker with a weight that was decoded for all of them: six products of digits for a code of a
// table, three for a whole number, and sums that end every 32 columns of ggml's.
inline long long digit_tokens(const encoding& how) {
  if (!detail::has_byte_products) return 0;
  const long long two_by_two = detail::product_side == 2 ? 4 : 1;
  return has_four_bits(how) ? 4 * two_by_two : how.codes == dtype::int8 ? 16 * two_by_two : 8 * two_by_two;
}
// Is a product of so many tokens made of digits?
inline bool by_digits(const weight_view& w, long long tokens) {
  const bool in_blocks = has_four_bits(w.how) && w.cols % w.how.block == 0;
  return (in_blocks || w.how.codes == dtype::int8 || w.how.codes == dtype::ggml) && w.cols % 32 == 0 &&
         tokens <= digit_tokens(w.how);
}

}  // namespace graft::cpu
