// SPDX-License-Identifier: Apache-2.0
// Q5_0 of ggml: 32 elements of a row in 22 bytes, a half-precision scale, 4 bytes with the fifth bits of the codes, and
// 16 bytes with their lower four bits (elements 0 to 15 in the lower halves),
//     w = scale · (q - 16)
// The scale is the element of largest magnitude divided by -16, so that this element is exact.
#pragma once
#include <graft/core/quant/ggml_block.h>

namespace graft::quant_formats {

struct q5_0_format : ggml_layout<32, 22, 16, 6> {
  static constexpr const char* name = "q5_0";
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from)}; }
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from, int r, signed char* to) {
    five_bit_codes(from + 6, from + 2, r, 16, to);
  }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const codes_around_middle<block> q(from, 16);
    store_half(q.scale, to);
    put_fifth_bits(q.code, to + 2), put_nibbles(q.code, to + 6);
  }
};

}  // namespace graft::quant_formats
