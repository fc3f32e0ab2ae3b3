// SPDX-License-Identifier: Apache-2.0
// IQ4_NL and IQ4_XS of ggml: a 4-bit index into a table of 16 integers, denser around zero. IQ4_NL stores 32 elements
// of a row in 18 bytes, as Q4_0 does. IQ4_XS stores 256 in 136: the block's scale, the upper two bits and then the
// lower four of 8 scales, and 16 bytes of codes for each of the 8 groups of 32 elements,
//     w = scale · table[q]        IQ4_XS: w = d · (scale - 32) · table[q]
#pragma once
#include <graft/core/quant/k_quants.h>

namespace graft::quant_formats {

inline constexpr signed char iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct iq4_nl_format : ggml_layout<32, 18, 16, 20> {
  static constexpr const char* name = "iq4_nl";
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from)}; }
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from, int r, signed char* to) {
    look_up_nibbles<iq4_table>(from + 2, r, to);
  }
};

struct iq4_xs_format : ggml_layout<256, 136, 16, 23> {
  static constexpr const char* name = "iq4_xs";
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from)}; }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    const int group = r / 2;
    return scaled(
        first,
        (bits_at(from[4 + group / 2], group % 2 * 4, 4) | bits_at(from[2 + group / 4], group % 4 * 2, 2) << 4) - 32);
  }
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from, int r, signed char* to) {
    look_up_nibbles<iq4_table>(from + 8 + r / 2 * 16, r % 2, to);
  }
};

}  // namespace graft::quant_formats
