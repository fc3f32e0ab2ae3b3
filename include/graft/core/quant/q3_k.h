// SPDX-License-Identifier: Apache-2.0
// Q3_K of ggml: 256 elements of a row in 110 bytes. 32 bytes hold the third bit of the codes, 64 bytes their lower two
// bits, 12 bytes a 6-bit scale for each run of 16 elements, then follows the block's scale d,
//     w = d · (scale - 32) · (q - 4)
// The lower four bits of the scales are in the halves of bytes 0 to 7, the upper two in bytes 8 to 11.
#pragma once
#include <graft/core/quant/k_quants.h>

namespace graft::quant_formats {

struct q3_k_format : ggml_layout<256, 110, 16, 11> {
  static constexpr const char* name = "q3_k";
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from + 108)}; }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    const unsigned char* const scales = from + 96;
    return scaled(first, (bits_at(scales[r % 8], r / 8 * 4, 4) | bits_at(scales[8 + r % 4], r / 4 * 2, 2) << 4) - 32);
  }
  static constexpr int code(const unsigned char* from, int r, int i) {
    const run_position p(r);
    return (two_bits_at(from + 32, r, i) | bits_at(from[p.first + i], 4 * p.half + p.quarter, 1) << 2) - 4;
  }
};

}  // namespace graft::quant_formats
