// SPDX-License-Identifier: Apache-2.0
// Q5_K of ggml: 256 elements of a row in 176 bytes, Q4_K with 32 more bytes in front of the codes: bit r of byte i is
// the fifth bit of element i of run r,
//     w = (d · scale) · q - m · minimum
#pragma once
#include <graft/core/quant/k_quants.h>

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
};

}  // namespace graft::quant_formats
