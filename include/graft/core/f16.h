// SPDX-License-Identifier: Apache-2.0
// Conversions between float and IEEE half precision, as the hardware does them: subnormals are kept, the narrowing
// rounds to nearest even and overflows to infinity; a NaN keeps its sign and gets a quiet payload.
#pragma once
#include <graft/core/dtype.h>

#include <bit>

namespace graft {

constexpr float widen(f16 v) {
  const std::uint32_t sign = (v.bits & 0x8000U) << 16U, exponent = (v.bits >> 10U) & 0x1fU, fraction = v.bits & 0x3ffU;
  // Zero or subnormal: fraction units of 2^-24. Both are computed, so that a loop over many has no branch.
  const auto small = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (exponent == 0 ? small : (wide << 23U) | (fraction << 13U)));
}

constexpr f16 narrow_to_f16(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t sign = (u >> 16U) & 0x8000U, magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x47800000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};  // 2^16 and above
  // Below 2^-14 the last kept place is 2^-24: adding 0.5 shifts it to the last place of a float, rounding on the way.
  if (magnitude < 0x38800000U) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13U) & 1U) - (112U << 23U);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13U))};
}

}  // namespace graft
