// SPDX-License-Identifier: Apache-2.0
// Q6_K of ggml: 256 elements of a row in 210 bytes. 128 bytes hold the lower four bits of the codes, 64 bytes their
// upper two, 16 signed bytes the scales of the runs of 16 elements, then follows the block's scale d,
//     w = d · scale · (q - 32)
#pragma once
#include <graft/core/quant/k_quants.h>

namespace graft::quant_formats {

struct q6_k_format : ggml_layout<256, 210, 16, 14> {
  static constexpr const char* name = "q6_k";
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from + 208)}; }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    return scaled(first, static_cast<signed char>(from[192 + r]));
  }
  // Of a half, the lower halves of 64 bytes belong to quarters 0 and 1, the upper halves to quarters 2 and 3.
  static constexpr int code(const unsigned char* from, int r, int i) {
    const run_place p(r);
    const unsigned char low = from[64 * p.half + 32 * (p.quarter % 2) + p.first + i];
    return (bits_at(low, 4 * (p.quarter / 2), 4) | two_bits_at(from + 128, r, i) << 4) - 32;
  }
};

}  // namespace graft::quant_formats
