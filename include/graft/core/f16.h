// SPDX-License-Identifier: Apache-2.0
// Conversions between float and IEEE half precision with the results of the
// hardware instructions: subnormals stay exact, narrowing rounds to nearest
// even and overflows to infinity, and a NaN keeps its sign and becomes quiet.
#pragma once
#include <graft/core/dtype.h>

#include <bit>
#include <type_traits>

namespace graft {

// The conversion by an instruction where the compiler has one; nvcc's front end
// knows neither of them.
#if defined(__F16C__) && !defined(__CUDACC__)
inline float widen_by_instruction(f16 v) {
  using eight = short __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps(eight{static_cast<short>(v.bits)})[0];
}
#define GRAFT_HAS_WIDEN_INSTRUCTION 1
#elif defined(__aarch64__) && !defined(__CUDACC__)
inline float widen_by_instruction(f16 v) {
  __fp16 half;
  __builtin_memcpy(&half, &v.bits, sizeof half);
  return static_cast<float>(half);
}
#define GRAFT_HAS_WIDEN_INSTRUCTION 1
#endif

constexpr float widen(f16 v) {
#if defined(GRAFT_HAS_WIDEN_INSTRUCTION)
  if (!std::is_constant_evaluated()) return widen_by_instruction(v);
#endif
  const std::uint32_t sign = (v.bits & 0x8000U) << 16U, exponent = (v.bits >> 10U) & 0x1fU, fraction = v.bits & 0x3ffU;
  // A zero or subnormal is `fraction` times 2^-24. Both results are computed so
  // that a loop can be vectorized.
  const auto small = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (exponent == 0 ? small : (wide << 23U) | (fraction << 13U)));
}

constexpr f16 narrow_to_f16(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t sign = (u >> 16U) & 0x8000U, magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x47800000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};  // 2^16 and above
  // Below 2^-14 the last bit of a half is 2^-24, which is also the last bit of
  // a float in [0.5, 1): adding 0.5 rounds.
  if (magnitude < 0x38800000U) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13U) & 1U) - (112U << 23U);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13U))};
}

}  // namespace graft
