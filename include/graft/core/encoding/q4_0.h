// SPDX-License-Identifier: Apache-2.0
// Q4_0 of ggml: 32 elements of a row in 18 bytes, a scale in half precision and then 16 bytes of which the lower halves
// are the codes of the first 16 elements and the upper halves those of the others,
//     w = (code - 8) scale.
// The scale is the element of largest magnitude over -8, so that this one is exact.
#pragma once
#include <graft/core/encoding/ggml_block.h>

namespace graft::encodings {

struct q4_0_codes {
  static constexpr const char* name = "q4_0";
  static constexpr int block = 32, bytes = 18, number_in_files = 2;
  static constexpr encoding how() { return ggml_block(block, bytes, number_in_files); }
  static constexpr float value(unsigned code) { return static_cast<float>(static_cast<int>(code) - 8); }
  // Element i of a block whose scale is known.
  static constexpr float number(const unsigned char* from, int i, float scale) {
    const unsigned two = from[2 + i % (block / 2)];
    return value(i < block / 2 ? two & 15U : two >> 4U) * scale;
  }
  static constexpr void decode(const unsigned char* from, float* to) {
    const float scale = half_at(from);
    for (int i = 0; i < block / 2; ++i) {
      to[i] = value(from[2 + i] & 15U) * scale;
      to[i + block / 2] = value(static_cast<unsigned>(from[2 + i]) >> 4U) * scale;
    }
  }
  static constexpr void quantize(const float* from, unsigned char* to) {
    const float size = largest_magnitude(from, block);
    float most = 0;  // the first of that size, with its sign
    for (int i = block - 1; i >= 0; --i) most = from[i] == size || from[i] == -size ? from[i] : most;
    const float scale = most / -8.0F, factor = scale != 0 ? 1.0F / scale : 0.0F;
    put_half(scale, to);
    auto code = [&](float v) {
      const auto c = static_cast<int>(static_cast<double>(v) * static_cast<double>(factor) + 8.5);
      return static_cast<unsigned>(c < 0 ? 0 : c > 15 ? 15 : c);
    };
    for (int i = 0; i < block / 2; ++i)
      to[2 + i] = static_cast<unsigned char>(code(from[i]) | code(from[i + block / 2]) << 4U);
  }
};

}  // namespace graft::encodings
