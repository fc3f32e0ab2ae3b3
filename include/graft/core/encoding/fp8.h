// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3: a sign, four bits of exponent and three of fraction, no infinity, up to 448 (Micikevicius et al. 2022); one
// scale for the tensor or for each row,
//     w = value(code) scale.
// Rounds to nearest even and saturates, as hardware does.
#pragma once
#include <graft/core/encoding.h>

#include <bit>

namespace graft::encodings {

struct fp8_codes {
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
    if (size < (121U << 23U)) {  // below 2^-6: units of 2^-9, rounded where a float has its last place
      const float shifted = std::bit_cast<float>(size) + 0x1p14F;
      return static_cast<unsigned char>(sign | (std::bit_cast<std::uint32_t>(shifted) - (141U << 23U)));
    }
    const std::uint32_t rounded = size + 0x7ffffU + (size >> 20U & 1U) - (120U << 23U);
    const std::uint32_t code = rounded >> 20U;
    return static_cast<unsigned char>(sign | (code > 0x7eU ? 0x7eU : code));
  }
  // Numbers that share a scale; returns it.
  static constexpr float quantize(const float* from, long long n, unsigned char* codes) {
    const float most = largest_magnitude(from, n);
    const float scale = most > 0 ? most / largest : 1.0F;
    for (long long i = 0; i < n; ++i) codes[i] = nearest(from[i] / scale);
    return scale;
  }
};

}  // namespace graft::encodings
