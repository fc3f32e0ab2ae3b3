// SPDX-License-Identifier: Apache-2.0
// Q4_0 of ggml: 32 elements of a row in 18 bytes, a half-precision scale followed by 16 bytes. The lower halves of the
// bytes store elements 0 to 15, the upper halves elements 16 to 31,
//     w = scale · (q - 8)
// The scale is the element of largest magnitude divided by -8, so that this element is exact.
#pragma once
#include <graft/core/quant/ggml_block.h>

namespace graft::quant_formats {

struct q4_0_format : ggml_layout<32, 18, 16, 2> {
  static constexpr const char* name = "q4_0";
  static constexpr float value(unsigned code) { return static_cast<float>(static_cast<int>(code) - 8); }
  // Element i of a block whose scale the caller has read.
  static constexpr float dequantize(const unsigned char* from, int i, float scale) {
    const unsigned two = from[2 + i % (block / 2)];
    return value(i < block / 2 ? two & 15U : two >> 4U) * scale;
  }
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from)}; }
  static constexpr int code(const unsigned char* from, int r, int i) { return bits_at(from[2 + i], 4 * r, 4) - 8; }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const codes_around_middle<block> q(from, 8);
    store_half(q.scale, to);
    put_nibbles(q.code, to + 2);
  }
};

}  // namespace graft::quant_formats
