// SPDX-License-Identifier: Apache-2.0
// Q5_K of ggml: 256 elements of a row in 176 bytes, Q4_K with 32 more bytes in front of the codes: bit r of byte i is
// the fifth bit of element i of run r,
//     w = (d · scale) · q - m · minimum
#pragma once
#include <graft/core/quant/k_quant_search.h>

namespace graft::quant_formats {

struct q5_k_format : ggml_layout<256, 176, 32, 13> {
  static constexpr const char* name = "q5_k";
  static constexpr bool has_minimum = true;
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from), load_half(from + 2)}; }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    return scaled(first, six_bit_scale(from + 4, r), six_bit_minimum(from + 4, r));
  }
  static constexpr int code(const unsigned char* from, int r, int i) {
    return four_bits_at(from + 48, r, i) | bits_at(from[16 + i], r, 1) << 4;
  }
  static void quantize(const float* from, unsigned char* to) {
    unsigned char q[block];
    quantize_six_bit_runs(from, 31, -0.5F, 15, to, q);
    for (int i = 0; i < 32; ++i) {
      unsigned fifth = 0;
      for (unsigned r = 0; r < 8; ++r) fifth |= (q[32 * r + static_cast<unsigned>(i)] >> 4U & 1U) << r;
      to[16 + i] = static_cast<unsigned char>(fifth);
    }
    for (int i = 0; i < 128; ++i) {
      const int first = i / 32 * 64 + i % 32;
      to[48 + i] = static_cast<unsigned char>((q[first] & 15U) | (q[first + 32] & 15U) << 4U);
    }
  }
};

}  // namespace graft::quant_formats
