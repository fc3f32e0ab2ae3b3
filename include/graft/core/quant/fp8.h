// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3: a sign, four exponent bits and three fraction bits, no infinity, largest value 448 (Micikevicius et al.
// 2022); one scale for the tensor or for each row,
//     w = value(q) · scale
// Quantization rounds to nearest even and saturates, as the hardware instructions do.
#pragma once
#include <graft/core/quant_format.h>

#include <bit>

namespace graft::quant_formats {

struct fp8_format {
  static constexpr const char* name = "f8_e4m3";
  static constexpr dtype type = dtype::f8_e4m3;
  static constexpr float largest = 448;
  static constexpr float value(unsigned char code) {
    const std::uint32_t sign = (code & 0x80U) << 24U, rest = code & 0x7fU;
    if (rest == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
    if (rest < 8) return (sign != 0 ? -0x1p-9F : 0x1p-9F) * static_cast<float>(rest);
    return std::bit_cast<float>(sign | ((rest << 20U) + (120U << 23U)));
  }
  static constexpr unsigned char nearest(float v) {
    const auto bits = std::bit_cast<std::uint32_t>(v);
    const std::uint32_t sign = bits >> 24U & 0x80U, size = bits & 0x7fffffffU;
    if (size > 0x7f800000U) return static_cast<unsigned char>(sign | 0x7fU);
    if (size >= std::bit_cast<std::uint32_t>(largest)) return static_cast<unsigned char>(sign | 0x7eU);
    if (size < (121U << 23U)) {  // below 2^-6 the unit is 2^-9, the last bit of a float near 2^14
      const float shifted = std::bit_cast<float>(size) + 0x1p14F;
      return static_cast<unsigned char>(sign | (std::bit_cast<std::uint32_t>(shifted) - (141U << 23U)));
    }
    const std::uint32_t rounded = size + 0x7ffffU + (size >> 20U & 1U) - (120U << 23U);
    const std::uint32_t code = rounded >> 20U;
    return static_cast<unsigned char>(sign | (code > 0x7eU ? 0x7eU : code));
  }
  // Quantizes n numbers that share one scale, which it returns.
  static constexpr float quantize(const float* from, long long n, unsigned char* quants) {
    const float most = abs_max(from, n);
    const float scale = most > 0 ? most / largest : 1.0F;
    for (long long i = 0; i < n; ++i) quants[i] = nearest(from[i] / scale);
    return scale;
  }
};

}  // namespace graft::quant_formats
