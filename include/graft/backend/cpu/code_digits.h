// SPDX-License-Identifier: Apache-2.0
// Codes as digits that are bytes (x_digits.h), 32 columns of as many rows at a time as byte_products.h multiplies. A
// number of a four-bit table is three digits, each looked up by a permutation of bytes; a whole number is one digit. For
// each kind of codes: the columns that are summed before they are scaled, and its rows, with their scales, the registers
// that are read for 32 columns, and the digits of each register that is multiplied.
#pragma once
#include <graft/backend/cpu/codes.h>
#include <graft/backend/cpu/x_digits.h>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

// Columns that are summed at once: 256 times the sum of their second digits stays below 2^31.
inline constexpr int most_at_once(int digits) { return digits == 1 ? 256 : 128; }

// Where the bytes of some rows begin. Rows are read in groups of as many as a product takes.
template <int Rows> struct bytes_of_rows {
  const unsigned char* at[Rows];

  bytes_of_rows(const weight_view& w, const long long (&row)[Rows], long long row_bytes) {
    for (int r = 0; r < Rows; ++r) at[r] = static_cast<const unsigned char*>(w.codes) + row[r] * row_bytes;
  }
  // 16 bytes of each row of a group.
  void read(int group, long long byte, uint8x16_t* to) const {
    uint8x16_t of_row[product_side], both[product_side];
    for (int r = 0; r < product_side; ++r) of_row[r] = vld1q_u8(at[group * product_side + r] + byte);
    beside_each_other(of_row, both);
    for (int r = 0; r < product_side; ++r) to[r] = both[r];
  }
};

// NF4 and FP4, of rows that are whole blocks.
struct four_bit_digits {
  static constexpr int digits = 3, read_registers = product_side;
  static constexpr bool even_first = true, whole_pieces = true;
  static constexpr float unit = 1 / 127.0F;  // of x's, where the largest of a table is 127 in the first digit

  const weight_view& w;
  long long blocks, first = 0;
  int shift;
  const float* scales;
  three_digits table;

  explicit four_bit_digits(const weight_view& of)
      : w(of), blocks(of.cols / of.how.block), shift(std::countr_zero(static_cast<unsigned>(of.how.block))) {
    const float* const values = w.how.codes == dtype::nf4 ? encodings::nf4_codes::table : encodings::fp4_codes::table;
    float32x4_t all[4];
    for (int i = 0; i < 4; ++i) all[i] = vld1q_f32(values + 4 * i);
    table = detail::digits_of(all, whole_digits), scales = static_cast<const float*>(w.beside->scales);
  }
  long long piece() const { return std::min(w.how.block, most_at_once(digits)); }
  // Scales that are codes become numbers once for all tokens.
  void begin(long long row, long long n) {
    if (w.beside->how.scales != dtype::u8) return;
    thread_local memory<float> made;
    made.reserve(n * blocks), scales = made.data(), first = row;
    nested_scales(*w.beside, row * blocks, n * blocks, made.data());
  }
  template <int Rows> struct rows {
    const four_bit_digits& all;
    bytes_of_rows<Rows> bytes;
    const float* scales[Rows];

    rows(const four_bit_digits& of, const long long (&row)[Rows]) : all(of), bytes(of.w, row, of.w.cols / 2) {
      for (int r = 0; r < Rows; ++r) scales[r] = of.scales + (row[r] - of.first) * of.blocks;
    }
    float32x4_t scale(long long column) const { return for_rows(scales, column >> all.shift); }
    void read(int group, long long column, uint8x16_t (&to)[read_registers]) const {
      bytes.read(group, column / 2, to);
    }
    void digits_of(const uint8x16_t (&from)[read_registers], int i, int8x16_t (&to)[digits]) const {
      const uint8x16_t codes =
          i < product_side ? vshrq_n_u8(from[i], 4) : vandq_u8(from[i - product_side], vdupq_n_u8(15));
      for (int d = 0; d < digits; ++d) to[d] = vqtbl1q_s8(all.table.d[d], codes);
    }
  };
};

}  // namespace graft::cpu::detail
#endif
