// SPDX-License-Identifier: Apache-2.0
// Codes that are whole numbers as digits (code_digits.h): int8 with a scale for a row, Q8_0 and Q4_0 of ggml with one
// for 32 columns. Nothing is looked up. The four bits of Q4_0 stay in the upper halves of bytes, 16 times their number,
// where a bit turned over makes them signed.
#pragma once
#include <graft/backend/cpu/code_digits.h>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

struct int8_digits {
  static constexpr int digits = 1, read_registers = 2 * product_side;
  static constexpr bool even_first = false, whole_pieces = false;
  static constexpr float unit = 1;

  const weight_view& w;
  long long piece() const { return most_at_once(digits); }
  void begin(long long, long long) {}

  template <int Rows> struct rows {
    bytes_of_rows<Rows> bytes;
    float32x4_t all;

    rows(const int8_digits& of, const long long (&row)[Rows]) : bytes(of.w, row, of.w.cols) {
      float by[Rows];
      const float* at[Rows];
      for (int r = 0; r < Rows; ++r)
        by[r] = encodings::int8_codes::number(1, scale_at(*of.w.beside, row[r])), at[r] = by + r;
      all = for_rows(at, 0);
    }
    float32x4_t scale(long long) const { return all; }
    void read(int group, long long column, uint8x16_t (&to)[read_registers]) const {
      bytes.read(group, column, to), bytes.read(group, column + 16, to + product_side);
    }
    void digits_of(const uint8x16_t (&from)[read_registers], int i, int8x16_t (&to)[digits]) const {
      to[0] = vreinterpretq_s8_u8(from[i]);
    }
  };
};

template <class Codes> struct ggml_digits {
  static constexpr bool even_first = false, whole_pieces = true,
                        wide = Codes::number_in_files == encodings::q8_0_codes::number_in_files;
  static constexpr int digits = 1, read_registers = (wide ? 2 : 1) * product_side;
  static constexpr float unit = wide ? 1.0F : 1 / 16.0F;

  const weight_view& w;
  long long piece() const { return Codes::block; }
  void begin(long long, long long) {}

  template <int Rows> struct rows {
    bytes_of_rows<Rows> bytes;

    rows(const ggml_digits& of, const long long (&row)[Rows])
        : bytes(of.w, row, of.w.cols / Codes::block * Codes::bytes) {}
    float32x4_t scale(long long column) const {
      return halves_for_rows(bytes.at, column / Codes::block * Codes::bytes);
    }
    void read(int group, long long column, uint8x16_t (&to)[read_registers]) const {
      const long long from = column / Codes::block * Codes::bytes + 2;
      bytes.read(group, from, to);
      if constexpr (wide)
        bytes.read(group, from + 16, to + product_side);
      else
        for (uint8x16_t& both : to) both = veorq_u8(both, vdupq_n_u8(0x88));
    }
    void digits_of(const uint8x16_t (&from)[read_registers], int i, int8x16_t (&to)[digits]) const {
      if constexpr (wide)
        to[0] = vreinterpretq_s8_u8(from[i]);
      else  // the lower halves of 16 bytes are the first 16 columns
        to[0] = vreinterpretq_s8_u8(i < product_side ? vshlq_n_u8(from[i], 4)
                                                     : vandq_u8(from[i - product_side], vdupq_n_u8(0xf0)));
    }
  };
};

}  // namespace graft::cpu::detail
#endif
