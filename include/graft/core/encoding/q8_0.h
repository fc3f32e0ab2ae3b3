// SPDX-License-Identifier: Apache-2.0
// Q8_0 of ggml: 32 elements of a row in 34 bytes, a scale in half precision and then their whole numbers,
//     w = code scale.
#pragma once
#include <graft/core/encoding/ggml_block.h>

namespace graft::encodings {

struct q8_0_codes {
  static constexpr const char* name = "q8_0";
  static constexpr int block = 32, bytes = 34, number_in_files = 8;
  static constexpr encoding how() { return ggml_block(block, bytes, number_in_files); }
  // Element i of a block whose scale is known.
  static constexpr float number(const unsigned char* from, int i, float scale) {
    return static_cast<float>(static_cast<signed char>(from[2 + i])) * scale;
  }
  static constexpr void decode(const unsigned char* from, float* to) {
    const float scale = half_at(from);
    for (int i = 0; i < block; ++i) to[i] = number(from, i, scale);
  }
  // To the nearest whole number, and away from zero where two are as near.
  static constexpr int nearest(float x) {
    const float size = x < 0 ? -x : x;
    const int below = static_cast<int>(size), whole = size - static_cast<float>(below) >= 0.5F ? below + 1 : below;
    return x < 0 ? -whole : whole;
  }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const float most = largest_magnitude(from, block);
    const float scale = most / 127.0F, factor = scale > 0 ? 1.0F / scale : 0.0F;
    put_half(scale, to);
    for (int i = 0; i < block; ++i) to[2 + i] = static_cast<unsigned char>(nearest(rounded_product(from[i], factor)));
  }
};

}  // namespace graft::encodings
