// SPDX-License-Identifier: Apache-2.0
// The block formats of ggml (ggml-common.h, ggml-quants.c). A block stores consecutive elements of a row: integer codes
// next to the scales that turn them into numbers,
//     w = scale · code + minimum
// Scales have one level or two: the block has a scale, and possibly a minimum, in half precision (little-endian and
// unaligned); in the K-quants (where ggml calls a block a super-block) each run of elements multiplies them by integers
// of its own. A run (ggml: sub-block) is consecutive elements that share scale and minimum and whose codes are in the
// same bits of consecutive bytes. A format states
//     block_scale(from)             the first level of the block at `from`
//     run_scale(from, first, r)     scale and minimum of run r
//     code(from, r, i)              the code of element i of run r, or
//     codes(from, r, to)            those of the whole run
// and dequantize_block follows. Here scale · code is exact in float (11 bits of a half, at most 24 with the integers),
// so the result has ggml's bits whether or not a compiler contracts the product and the sum into an FMA.
#pragma once
#include <graft/core/f16.h>
#include <graft/core/quant_format.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace graft::quant_formats {

constexpr float load_half(const unsigned char* p) {
  return widen(f16{static_cast<std::uint16_t>(p[0] | static_cast<unsigned>(p[1]) << 8U)});
}
constexpr void store_half(float v, unsigned char* p) {
  const f16 half = narrow_to_f16(v);
  p[0] = static_cast<unsigned char>(half.bits & 0xffU), p[1] = static_cast<unsigned char>(half.bits >> 8U);
}
// `count` bits of a byte, from bit `first` on.
constexpr int bits_at(unsigned char from, int first, int count) { return from >> first & ((1 << count) - 1); }
// Codes of 5 bits of 16 elements, less `middle`: their lower four bits are in half r of 16 bytes, the fifth ones in 16
// bits. The fifth bits are masked out of copies of their byte, which vectorizes where a shift per element does not.
[[gnu::always_inline]] constexpr void five_bit_codes(const unsigned char* lower, const unsigned char* fifth, int r,
                                                     int middle, signed char* to) {
  constexpr unsigned char mask[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  unsigned char copies[16] = {};
  for (int i = 0; i < 8; ++i) copies[i] = fifth[2 * r];
  for (int i = 8; i < 16; ++i) copies[i] = fifth[2 * r + 1];
  for (int i = 0; i < 16; ++i)
    to[i] = static_cast<signed char>(bits_at(lower[i], 4 * r, 4) + ((copies[i] & mask[i]) != 0 ? 16 : 0) - middle);
}

// A table of 16 bytes in two words: indexed with a variable, an array of device code would be in local memory.
struct byte_table {
  std::uint64_t half[2] = {};
  constexpr explicit byte_table(const signed char (&table)[16]) {
    for (unsigned k = 0; k < 16; ++k)
      half[k / 8] |= static_cast<std::uint64_t>(static_cast<unsigned char>(table[k])) << (8 * (k % 8));
  }
  constexpr signed char operator[](int k) const {
    return static_cast<signed char>((k < 8 ? half[0] : half[1]) >> static_cast<unsigned>(8 * (k % 8)) & 255U);
  }
};
// The numbers of a table for the 4-bit codes in half h of 16 bytes.
template <const signed char (&Table)[16]>
[[gnu::always_inline]] constexpr void look_up_nibbles(const unsigned char* from, int h, signed char* to) {
#if defined(__CUDA_ARCH__)
  constexpr byte_table table(Table);
#else
  constexpr const signed char(&table)[16] = Table;
#endif
  for (int i = 0; i < 16; ++i) to[i] = table[bits_at(from[i], 4 * h, 4)];
}

constexpr quant_format ggml_block(int elements, int bytes, int ggml_type_id) {
  return {.type = dtype::ggml,
          .scaled = scale_granularity::block,
          .block = elements,
          .block_bytes = bytes,
          .block_type = ggml_type_id};
}

struct affine {
  float scale = 0, minimum = 0;
};

// The sizes of a format: elements and bytes of a block, elements of a run, and the number of the type in GGUF files.
template <int Elements, int Bytes, int Run, int Type> struct ggml_layout {
  static constexpr int block = Elements, bytes = Bytes, run = Run, runs = Elements / Run, ggml_type_id = Type;
  static constexpr quant_format format() { return ggml_block(Elements, Bytes, Type); }
  // Formats with one level of scales keep these two; formats without a minimum do not add one.
  static constexpr bool has_minimum = false;
  static constexpr affine run_scale(const unsigned char*, affine first, int) { return first; }
};

// The codes of run `r`, a constant of each call. Codes are bytes of a local array before they are floats, so that both
// loops are vectorized: the output, which bytes could alias, is not written while codes are read. g++ unrolls a loop of
// 16 steps before it vectorizes, and then converts byte by byte, four times slower; the pragma keeps the loop. nvcc
// does not know it.
template <class Format>
[[gnu::always_inline]] constexpr void read_codes(const unsigned char* from, int r, signed char* code) {
  if constexpr (requires { Format::codes(from, r, code); })
    Format::codes(from, r, code);
  else
#ifndef __CUDACC__
#pragma GCC unroll 1
#endif
    for (int i = 0; i < Format::run; ++i) code[i] = static_cast<signed char>(Format::code(from, r, i));
}
template <class Format>
[[gnu::always_inline]] constexpr void dequantize_run(const unsigned char* from, affine first, int r, float* to) {
  const affine s = Format::run_scale(from, first, r);
  signed char code[static_cast<unsigned>(Format::run)] = {};
  read_codes<Format>(from, r, code);
#ifndef __CUDACC__
#pragma GCC unroll 1
#endif
  for (int i = 0; i < Format::run; ++i) {
    if constexpr (Format::has_minimum)
      to[i] = s.scale * static_cast<float>(code[i]) + s.minimum;
    else
      to[i] = s.scale * static_cast<float>(code[i]);
  }
}
template <class Format, int... R>
[[gnu::always_inline]] constexpr void dequantize_runs(const unsigned char* from, float* to,
                                                      std::integer_sequence<int, R...>) {
  const affine first = Format::block_scale(from);
  (dequantize_run<Format>(from, first, R, to + R * Format::run), ...);
}
template <class Format> [[gnu::always_inline]] constexpr void dequantize_block(const unsigned char* from, float* to) {
  dequantize_runs<Format>(from, to, std::make_integer_sequence<int, Format::runs>());
}

// Elements [16 p, 16 p + 16) of a block, which are in one run: what a thread of a GPU dequantizes at once.
inline constexpr int part_size = 16;
template <class Format>
constexpr void dequantize_part(const unsigned char* from, int p, float (&to)[static_cast<std::size_t>(part_size)]) {
  static_assert(Format::run % part_size == 0);
  constexpr int parts = Format::run / part_size;
  const int r = p / parts, first = p % parts * part_size;
  const affine s = Format::run_scale(from, Format::block_scale(from), r);
  signed char code[static_cast<unsigned>(part_size)] = {};
  if constexpr (requires { Format::codes(from, r, code); }) {
    static_assert(parts == 1);
    Format::codes(from, r, code);
  } else {
    for (int i = 0; i < part_size; ++i) code[i] = static_cast<signed char>(Format::code(from, r, first + i));
  }
  for (int i = 0; i < part_size; ++i) {
    to[i] = s.scale * static_cast<float>(code[i]);
    if constexpr (Format::has_minimum) to[i] += s.minimum;
  }
}

// Codes of b bits that quantize `block` numbers from their smallest to their largest (Q4_1, Q5_1).
template <int Elements> struct codes_from_minimum {
  float scale = 0, minimum = 0;
  unsigned char code[static_cast<unsigned>(Elements)] = {};
  constexpr codes_from_minimum(const float* from, int largest_code) {
    float most = from[0];
    minimum = from[0];
    for (int i = 1; i < Elements; ++i) {
      most = from[i] > most ? from[i] : most;
      minimum = from[i] < minimum ? from[i] : minimum;
    }
    scale = (most - minimum) / static_cast<float>(largest_code);
    const float factor = scale != 0 ? 1.0F / scale : 0.0F;
    for (int i = 0; i < Elements; ++i) {
      const auto c = static_cast<int>(rounded_product(from[i] - minimum, factor) + 0.5F);
      code[i] = static_cast<unsigned char>(c < 0 ? 0 : c > largest_code ? largest_code : c);
    }
  }
};
// Codes from 0 on around `middle`, whose scale makes the element of largest magnitude exact (Q4_0, Q5_0).
template <int Elements> struct codes_around_middle {
  float scale = 0;
  unsigned char code[static_cast<unsigned>(Elements)] = {};
  constexpr codes_around_middle(const float* from, int middle) {
    const float size = abs_max(from, Elements);
    float most = 0;  // the first element of that magnitude, with its sign
    for (int i = Elements - 1; i >= 0; --i) most = from[i] == size || from[i] == -size ? from[i] : most;
    scale = most / static_cast<float>(-middle);
    const float factor = scale != 0 ? 1.0F / scale : 0.0F;
    for (int i = 0; i < Elements; ++i) {
      const auto c = static_cast<int>(static_cast<double>(from[i]) * static_cast<double>(factor) + middle + 0.5);
      code[i] = static_cast<unsigned char>(c < 0 ? 0 : c > 2 * middle - 1 ? 2 * middle - 1 : c);
    }
  }
};
// Stores the lower four bits of 32 codes in 16 bytes: elements 0 to 15 in the lower halves, 16 to 31 in the upper ones.
constexpr void put_nibbles(const unsigned char (&code)[32], unsigned char* to) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<unsigned char>((code[i] & 15U) | (code[i + 16] & 15U) << 4U);
}
// Stores the fifth bits of 32 codes in 4 bytes.
constexpr void put_fifth_bits(const unsigned char (&code)[32], unsigned char* to) {
  for (int b = 0; b < 4; ++b) {
    unsigned byte = 0;
    for (int i = 0; i < 8; ++i) byte |= (code[8 * b + i] >> 4U & 1U) << static_cast<unsigned>(i);
    to[b] = static_cast<unsigned char>(byte);
  }
}

}  // namespace graft::quant_formats
