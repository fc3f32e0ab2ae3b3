// SPDX-License-Identifier: Apache-2.0
#include <graft/core/f16.h>

#include <cmath>

#include "../support/static_check.h"

using namespace graft;

namespace {
// Reference by definition: sign, exponent and fraction combined by ldexp.
float by_definition(unsigned u) {
  const int exponent = static_cast<int>((u >> 10U) & 31U), fraction = static_cast<int>(u & 1023U);
  const float magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return std::copysign(magnitude, (u & 0x8000U) != 0 ? -1.0F : 1.0F);
}
}  // namespace

TEST_CASE("f16: widening is exact and narrowing inverts it, for all 65536 values") {
  for (unsigned u = 0; u <= 0xffffU; ++u) {
    const float wide = widen(f16{static_cast<std::uint16_t>(u)}), expected = by_definition(u);
    if (std::isnan(expected)) {
      if (!std::isnan(wide)) FAIL_CHECK("not a NaN at " << u);
      if (narrow_to_f16(wide).bits != ((u & 0x8000U) | 0x7e00U)) FAIL_CHECK("a NaN comes back quiet: " << u);
      continue;
    }
    if (wide != expected || std::signbit(wide) != std::signbit(expected)) FAIL_CHECK("widening changed " << u);
    if (narrow_to_f16(wide).bits != u) FAIL_CHECK("round trip of " << u);
  }
}

TEST_CASE("f16: narrowing rounds to nearest even between all neighbors") {
  for (unsigned u = 0; u < 0x7bffU; ++u) {
    const float low = widen(f16{static_cast<std::uint16_t>(u)}), high = widen(f16{static_cast<std::uint16_t>(u + 1)});
    const float middle = low + (high - low) / 2;
    const unsigned even = u % 2 == 0 ? u : u + 1;
    if (narrow_to_f16(middle).bits != even) FAIL_CHECK("middle above " << u);
    if (narrow_to_f16(std::nextafter(middle, low)).bits != u) FAIL_CHECK("below the middle above " << u);
    if (narrow_to_f16(std::nextafter(middle, high)).bits != u + 1) FAIL_CHECK("above the middle above " << u);
    if (narrow_to_f16(-middle).bits != (even | 0x8000U)) FAIL_CHECK("negative middle above " << u);
  }
  BOTH(narrow_to_f16(65519.0F).bits == 0x7bff);
  BOTH(narrow_to_f16(65520.0F).bits == 0x7c00);
  BOTH(narrow_to_f16(-1e30F).bits == 0xfc00);
}
