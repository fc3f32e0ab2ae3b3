// SPDX-License-Identifier: Apache-2.0
// The dropout mask of a tensor, drawn by a counter-based generator: one 64-bit draw decides about four neighboring
// elements with 16 bits each. Every element follows from the seed and its number alone, so forward, backward and every
// machine drop the same ones and no mask is stored.
#pragma once
#include <graft/core/splitmix64.h>

namespace graft {

struct dropout_mask {
  std::uint64_t key = 0;
  unsigned below = 0;  // an element is dropped if its 16-bit draw is below this

  static constexpr dropout_mask of(std::int64_t seed, long long salt, double rate) {
    return {splitmix64(static_cast<std::uint64_t>(seed) ^ splitmix64(static_cast<std::uint64_t>(salt))),
            static_cast<unsigned>(rate * 65536 + 0.5)};
  }
  // The factor of the elements that are not dropped.
  template <class Real> static constexpr Real scale(Real rate) {
    return rate < Real(1) ? Real(1) / (Real(1) - rate) : Real(0);
  }
  // The draw of elements 4 group to 4 group + 3; drops(draws, k) decides about element k of them.
  constexpr std::uint64_t four(std::uint64_t group) const { return splitmix64(key ^ group); }
  constexpr bool drops(std::uint64_t draws, int k) const { return (draws >> (16 * k) & 0xffffU) < below; }
  constexpr bool drops(long long i) const {
    return drops(four(static_cast<std::uint64_t>(i) / 4), static_cast<int>(i % 4));
  }
};

}  // namespace graft
