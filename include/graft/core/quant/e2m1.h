// SPDX-License-Identifier: Apache-2.0
// E2M1, the 4-bit float of MXFP4 and NVFP4: a sign, two exponent bits and one fraction bit (OCP Microscaling Formats
// 1.0, section 5.3.3). Two values share a byte, the first one in the lower half.
#pragma once
#include <graft/core/quant_format.h>

#include <bit>

namespace graft::quant_formats {

struct e2m1 {
  static constexpr dtype type = dtype::f4_e2m1;
  static constexpr float largest = 6;
  static constexpr float table[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                      -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  // The number of a code without a look-up, for device code.
  static constexpr float value(unsigned code) {
    const std::uint32_t sign = (code & 8U) << 28U, rest = code & 7U;
    return std::bit_cast<float>(sign | (rest < 2 ? rest * 0x3f000000U : (rest << 22U) + (126U << 23U)));
  }
  static constexpr unsigned code_at(const unsigned char* codes, long long i) {
    return i % 2 == 0 ? codes[i / 2] & 15U : static_cast<unsigned>(codes[i / 2]) >> 4U;
  }
  // Rounds to nearest, ties to even, and saturates.
  static constexpr unsigned nearest(float x) {
    const float size = x < 0 ? -x : x;
    constexpr float middle[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
    unsigned code = 0;
    for (unsigned k = 0; k < 7; ++k) code += (k % 2 == 0 ? size > middle[k] : size >= middle[k]) ? 1U : 0U;
    return code | (x < 0 ? 8U : 0U);
  }
  static constexpr void quantize(const float* from, int n, float scale, unsigned char* to) {
    const float factor = scale > 0 ? scale : 1.0F;
    for (int i = 0; i < n; i += 2)
      to[i / 2] = static_cast<unsigned char>(nearest(from[i] / factor) | nearest(from[i + 1] / factor) << 4U);
  }
};

}  // namespace graft::quant_formats
