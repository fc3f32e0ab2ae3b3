// SPDX-License-Identifier: Apache-2.0
#include <graft/core/bf16.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr float from_bits(std::uint32_t u) { return std::bit_cast<float>(u); }
constexpr std::uint32_t bits(float f) { return std::bit_cast<std::uint32_t>(f); }
constexpr unsigned narrowed(std::uint32_t u) { return narrow(from_bits(u)).bits; }

// Reference by definition: the nearer of the two neighbors, and at the midpoint the even one.
std::uint16_t nearest(float f) {
  const std::uint32_t below = bits(f) & 0xffff0000U, above = below + 0x10000U;
  const std::uint32_t rest = bits(f) & 0xffffU;
  if (rest == 0x8000U) return static_cast<std::uint16_t>(((below >> 16U) & 1U) == 0 ? below >> 16U : above >> 16U);
  return static_cast<std::uint16_t>(rest < 0x8000U ? below >> 16U : above >> 16U);
}

}  // namespace

TEST_CASE("bf16: widening is exact and narrowing inverts it, for all 65536 values") {
  for (std::uint32_t u = 0; u <= 0xffffU; ++u) {
    const bf16 v{static_cast<std::uint16_t>(u)};
    const float wide = widen(v);
    if (bits(wide) != u << 16U) FAIL_CHECK("widening changed " << u);
    const bool nan = (u & 0x7fffU) > 0x7f80U;
    if (nan != std::isnan(wide)) FAIL_CHECK("a wrong NaN at " << u);
    const unsigned back = narrow(wide).bits;
    // A NaN becomes a quiet NaN with its sign and payload.
    if (back != (nan ? (u | 0x40U) : u)) FAIL_CHECK("round trip of " << u << " gives " << back);
  }
}

TEST_CASE("bf16: ties go to the even neighbor") {
  BOTH(narrowed(0x3f800000U) == 0x3f80U);  // 1
  BOTH(narrowed(0x3f807fffU) == 0x3f80U);  // just below the middle
  BOTH(narrowed(0x3f808000U) == 0x3f80U);  // the middle, 0x3f80 is even
  BOTH(narrowed(0x3f808001U) == 0x3f81U);  // just above
  BOTH(narrowed(0x3f818000U) == 0x3f82U);  // the middle, 0x3f81 is odd
  BOTH(narrowed(0xbf808000U) == 0xbf80U);
  BOTH(narrowed(0xbf818000U) == 0xbf82U);
  BOTH(narrowed(0x3fffffffU) == 0x4000U);  // carries into the exponent
  BOTH(narrow(1.0F / 3.0F).bits == 0x3eabU);
}

TEST_CASE("bf16: infinities, the largest values and zeros") {
  BOTH(narrowed(0x7f800000U) == 0x7f80U);
  BOTH(narrowed(0xff800000U) == 0xff80U);
  BOTH(narrowed(0x7f7fffffU) == 0x7f80U);  // the largest float is above the largest bf16: infinity, as in hardware
  BOTH(narrowed(0x7f7f7fffU) == 0x7f7fU);
  BOTH(narrowed(0x00000000U) == 0x0000U);
  BOTH(narrowed(0x80000000U) == 0x8000U);
}

TEST_CASE("bf16: denormals are rounded like other numbers") {
  BOTH(narrowed(0x00000001U) == 0x0000U);
  BOTH(narrowed(0x00008000U) == 0x0000U);  // half of the smallest: to even, zero
  BOTH(narrowed(0x00008001U) == 0x0001U);
  BOTH(narrowed(0x00010000U) == 0x0001U);
  BOTH(narrowed(0x00018000U) == 0x0002U);
  BOTH(narrowed(0x007fffffU) == 0x0080U);  // rounds up to the smallest normal number
  BOTH(narrowed(0x80000001U) == 0x8000U);
  CHECK(widen({0x0001U}) > 0);
  CHECK(widen({0x0001U}) == std::ldexp(1.0F, -133));
}

TEST_CASE("bf16: a NaN stays a NaN, whatever its payload") {
  for (const std::uint32_t u : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0x7f80ffffU, 0x7fffffffU, 0xff800001U}) {
    const bf16 v = narrow(from_bits(u));
    CHECK(std::isnan(widen(v)));
    CHECK((v.bits >> 15U) == (u >> 31U));
  }
  BOTH(narrowed(0x7f800001U) == 0x7fc0U);  // truncating the payload alone would give infinity
  BOTH(narrowed(0xffffffffU) == 0xffffU);
}

TEST_CASE("bf16: narrowing agrees with the reference over the whole range") {
  int wrong = 0;
  for (std::uint64_t u = 0; u <= 0xffffffffULL; u += 4093) {  // a prime step, so that every low half occurs
    const float f = from_bits(static_cast<std::uint32_t>(u));
    if (!std::isnan(f) && narrow(f).bits != nearest(f)) ++wrong;
  }
  CHECK(wrong == 0);
}
