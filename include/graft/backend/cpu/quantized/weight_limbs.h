// SPDX-License-Identifier: Apache-2.0
// Quantized weights as limbs, signed bytes (activation_limbs.h), 32 columns at a time of as many rows as an instruction
// of neon_int8.h takes. A value of a 4-bit table has three limbs, each looked up by a byte permutation; an integer
// (int8, Q8_0, Q4_0) is one limb. Each format class has the chunk of columns that is summed before scaling, and a
// `rows` class with the scales of some rows, the registers that are loaded for 32 columns, and the limbs of each
// register that is multiplied.
#pragma once
#include <graft/backend/cpu/quantized/activation_limbs.h>
#include <graft/backend/cpu/quantized/dequantize.h>
#include <graft/core/array_size.h>

#include <type_traits>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

// The columns of an integer sum: 256 s1 + s2 (limb_gemm.h) has to stay below 2^31.
inline constexpr int max_chunk(int limbs) { return limbs == 1 ? 256 : 128; }

// The first byte of some rows. Rows are read in groups of mma_rows, as many as an instruction takes.
template <int Rows> struct row_byte_pointers {
  const unsigned char* at[array_size(Rows)];

  row_byte_pointers(const weight_view& w, const long long (&row)[array_size(Rows)], long long row_bytes) {
    for (int r = 0; r < Rows; ++r) at[r] = static_cast<const unsigned char*>(w.data) + row[r] * row_bytes;
  }
  // Loads 16 bytes of each row of a group.
  void read(int group, long long byte, uint8x16_t* to) const {
    uint8x16_t of_row[mma_rows], both[mma_rows];
    for (int r = 0; r < mma_rows; ++r) of_row[r] = vld1q_u8(at[group * mma_rows + r] + byte);
    interleave_rows(of_row, both);
    for (int r = 0; r < mma_rows; ++r) to[r] = both[r];
  }
};

// NF4 and FP4, for rows that are whole blocks.
struct four_bit_limbs {
  static constexpr int limbs = 3, load_registers = mma_rows;
  static constexpr bool deinterleaved = true, whole_chunks = true;
  static constexpr float unit = 1 / 127.0F;  // the largest table value, 1, is 127 in the first limb

  const weight_view& w;
  long long blocks, first = 0;
  int shift;
  const float* scales;
  three_limbs table;

  explicit four_bit_limbs(const weight_view& of)
      : w(of), blocks(of.cols / of.format.block), shift(std::countr_zero(static_cast<unsigned>(of.format.block))) {
    const float* const values = four_bit_table(w.format.type);
    float32x4_t all[4];
    for (int i = 0; i < 4; ++i) all[i] = vld1q_f32(values + 4 * i);
    table = detail::limbs_of(all, limb_scale), scales = static_cast<const float*>(w.quant->scales);
  }
  long long chunk() const { return std::min(w.format.block, max_chunk(limbs)); }
  // Double-quantized scales are dequantized once for all tokens.
  void begin(long long row, long long n) {
    if (w.quant->format.scales != dtype::u8) return;
    thread_local memory<float> made;
    made.reserve(n * blocks), scales = made.data(), first = row;
    double_quant_scales(*w.quant, row * blocks, n * blocks, made.data());
  }
  template <int Rows> struct rows {
    const four_bit_limbs& all;
    row_byte_pointers<Rows> bytes;
    const float* scales[array_size(Rows)];

    rows(const four_bit_limbs& of, const long long (&row)[array_size(Rows)])
        : all(of), bytes(of.w, row, of.w.cols / 2) {
      for (int r = 0; r < Rows; ++r) scales[r] = of.scales + (row[r] - of.first) * of.blocks;
    }
    float32x4_t scale(long long column) const { return broadcast_rows(scales, column >> all.shift); }
    void read(int group, long long column, uint8x16_t (&to)[load_registers]) const {
      bytes.read(group, column / 2, to);
    }
    void limbs_of(const uint8x16_t (&from)[load_registers], int i, int8x16_t (&to)[limbs]) const {
      const uint8x16_t quants = i < mma_rows ? vshrq_n_u8(from[i], 4) : vandq_u8(from[i - mma_rows], vdupq_n_u8(15));
      for (int d = 0; d < limbs; ++d) to[d] = vqtbl1q_s8(all.table.d[d], quants);
    }
  };
};

}  // namespace graft::cpu::detail
#endif

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

// int8 with a scale per row.
struct int8_limbs {
  static constexpr int limbs = 1, load_registers = 2 * mma_rows;
  static constexpr bool deinterleaved = false, whole_chunks = false;
  static constexpr float unit = 1;

  const weight_view& w;
  long long chunk() const { return max_chunk(limbs); }
  void begin(long long, long long) {}

  template <int Rows> struct rows {
    row_byte_pointers<Rows> bytes;
    float32x4_t all;

    rows(const int8_limbs& of, const long long (&row)[array_size(Rows)]) : bytes(of.w, row, of.w.cols) {
      float by[array_size(Rows)];
      const float* at[array_size(Rows)];
      for (int r = 0; r < Rows; ++r)
        by[r] = quant_formats::int8_format::dequantize(1, scale_at(*of.w.quant, row[r])), at[r] = by + r;
      all = broadcast_rows(at, 0);
    }
    float32x4_t scale(long long) const { return all; }
    void read(int group, long long column, uint8x16_t (&to)[load_registers]) const {
      bytes.read(group, column, to), bytes.read(group, column + 16, to + mma_rows);
    }
    void limbs_of(const uint8x16_t (&from)[load_registers], int i, int8x16_t (&to)[limbs]) const {
      to[0] = vreinterpretq_s8_u8(from[i]);
    }
  };
};

// ggml's Q8_0 and Q4_0 with a scale per 32 columns. The values of Q4_0 stay in the upper halves of bytes, where they
// are 16 times as large; flipping their top bit makes them signed.
template <class Format> struct ggml_limbs {
  static_assert(Format::ggml_type_id == quant_formats::q8_0_format::ggml_type_id ||
                Format::ggml_type_id == quant_formats::q4_0_format::ggml_type_id);
  static constexpr bool deinterleaved = false, whole_chunks = true,
                        wide = std::is_same_v<Format, quant_formats::q8_0_format>;
  static_assert(wide || std::is_same_v<Format, quant_formats::q4_0_format>);
  static constexpr int limbs = 1, load_registers = (wide ? 2 : 1) * mma_rows;
  static constexpr float unit = wide ? 1.0F : 1 / 16.0F;

  const weight_view& w;
  long long chunk() const { return Format::block; }
  void begin(long long, long long) {}

  template <int Rows> struct rows {
    row_byte_pointers<Rows> bytes;

    rows(const ggml_limbs& of, const long long (&row)[array_size(Rows)])
        : bytes(of.w, row, of.w.cols / Format::block * Format::bytes) {}
    float32x4_t scale(long long column) const {
      return broadcast_half_rows(bytes.at, column / Format::block * Format::bytes);
    }
    void read(int group, long long column, uint8x16_t (&to)[array_size(load_registers)]) const {
      const long long from = column / Format::block * Format::bytes + 2;
      bytes.read(group, from, to);
      if constexpr (wide)
        bytes.read(group, from + 16, to + mma_rows);
      else
        for (uint8x16_t& both : to) both = veorq_u8(both, vdupq_n_u8(0x88));
    }
    void limbs_of(const uint8x16_t (&from)[array_size(load_registers)], int i,
                  int8x16_t (&to)[array_size(limbs)]) const {
      if constexpr (wide)
        to[0] = vreinterpretq_s8_u8(from[i]);
      else  // Q4_0: the lower halves of 16 bytes are the first 16 columns
        to[0] =
            vreinterpretq_s8_u8(i < mma_rows ? vshlq_n_u8(from[i], 4) : vandq_u8(from[i - mma_rows], vdupq_n_u8(0xf0)));
    }
  };
};

}  // namespace graft::cpu::detail
#endif
