// SPDX-License-Identifier: Apache-2.0
// Q8_0 of ggml: 32 elements of a row in 34 bytes, a half-precision scale followed by 32 signed bytes,
//     w = scale · q
#pragma once
#include <graft/core/quant/ggml_block.h>

namespace graft::quant_formats {

struct q8_0_format : ggml_layout<32, 34, 32, 8> {
  static constexpr const char* name = "q8_0";
  // Element i of a block whose scale the caller has read.
  static constexpr float dequantize(const unsigned char* from, int i, float scale) {
    return static_cast<float>(static_cast<signed char>(from[2 + i])) * scale;
  }
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from)}; }
  static constexpr int code(const unsigned char* from, int, int i) { return static_cast<signed char>(from[2 + i]); }
  // Rounds to nearest, ties away from zero.
  static constexpr int nearest(float x) {
    const float size = x < 0 ? -x : x;
    const int below = static_cast<int>(size), whole = size - static_cast<float>(below) >= 0.5F ? below + 1 : below;
    return x < 0 ? -whole : whole;
  }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const float most = abs_max(from, block);
    const float scale = most / 127.0F, factor = scale > 0 ? 1.0F / scale : 0.0F;
    store_half(scale, to);
    for (int i = 0; i < block; ++i) to[2 + i] = static_cast<unsigned char>(nearest(rounded_product(from[i], factor)));
  }
};

}  // namespace graft::quant_formats
