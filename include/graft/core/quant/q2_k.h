// SPDX-License-Identifier: Apache-2.0
// Q2_K of ggml: 256 elements of a row in 84 bytes. 16 bytes hold a 4-bit scale (lower half) and minimum (upper half) of
// each run of 16 elements, 64 bytes the codes, then follow the block's scale d and scale of minimums m,
//     w = (d · scale) · q - m · minimum
#pragma once
#include <graft/core/quant/k_quants.h>

namespace graft::quant_formats {

struct q2_k_format : ggml_layout<256, 84, 16, 10> {
  static constexpr const char* name = "q2_k";
  static constexpr bool has_minimum = true;
  static constexpr affine block_scale(const unsigned char* from) {
    return {load_half(from + 80), load_half(from + 82)};
  }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    return scaled(first, bits_at(from[r], 0, 4), bits_at(from[r], 4, 4));
  }
  static constexpr int code(const unsigned char* from, int r, int i) { return two_bits_at(from + 16, r, i); }
};

}  // namespace graft::quant_formats
