// SPDX-License-Identifier: Apache-2.0
// Conversions between float and bfloat16. Narrowing rounds to nearest even: it adds 0x7fff plus the lowest bit that
// stays, then truncates. A NaN keeps its sign and becomes quiet.
#pragma once
#include <graft/core/dtype.h>

#include <bit>

namespace graft {

constexpr float widen(bf16 v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16U); }

constexpr bf16 narrow(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((u >> 16U) | 0x0040U)};
  return {static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16U) & 1U)) >> 16U)};
}

}  // namespace graft
