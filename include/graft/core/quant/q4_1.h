// SPDX-License-Identifier: Apache-2.0
// Q4_1 of ggml: 32 elements of a row in 20 bytes, scale and minimum in half precision followed by 16 bytes with the
// codes of elements 0 to 15 in their lower and of 16 to 31 in their upper halves,
//     w = scale · q + minimum
#pragma once
#include <graft/core/quant/ggml_block.h>

namespace graft::quant_formats {

struct q4_1_format : ggml_layout<32, 20, 16, 3> {
  static constexpr const char* name = "q4_1";
  static constexpr bool has_minimum = true;
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from), load_half(from + 2)}; }
  static constexpr int code(const unsigned char* from, int r, int i) { return bits_at(from[4 + i], 4 * r, 4); }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const codes_from_minimum<block> q(from, 15);
    store_half(q.scale, to), store_half(q.minimum, to + 2);
    put_nibbles(q.code, to + 4);
  }
};

}  // namespace graft::quant_formats
