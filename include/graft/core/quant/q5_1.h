// SPDX-License-Identifier: Apache-2.0
// Q5_1 of ggml: 32 elements of a row in 24 bytes, scale and minimum in half precision, 4 bytes with the fifth bits of
// the codes, and 16 bytes with their lower four bits (elements 0 to 15 in the lower halves),
//     w = scale · q + minimum
#pragma once
#include <graft/core/quant/ggml_block.h>

namespace graft::quant_formats {

struct q5_1_format : ggml_layout<32, 24, 16, 7> {
  static constexpr const char* name = "q5_1";
  static constexpr bool has_minimum = true;
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from), load_half(from + 2)}; }
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from, int r, signed char* to) {
    five_bit_codes(from + 8, from + 4, r, 0, to);
  }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const codes_from_minimum<block> q(from, 31);
    store_half(q.scale, to), store_half(q.minimum, to + 2);
    put_fifth_bits(q.code, to + 4), put_nibbles(q.code, to + 8);
  }
};

}  // namespace graft::quant_formats
