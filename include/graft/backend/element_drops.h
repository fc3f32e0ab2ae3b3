// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor dropout drops: a draw of 64 bits by counter decides about four neighbours, 16 bits each. Any
// piece can be computed at any time, forward or backward, on every machine the same.
#pragma once
#include <graft/core/mixed_bits.h>

namespace graft {

struct element_drops {
  std::uint64_t key = 0;
  unsigned below = 0;  // of 65536 draws these are dropped

  static constexpr element_drops of(std::int64_t seed, long long salt, double rate) {
    return {mixed_bits(static_cast<std::uint64_t>(seed) ^ mixed_bits(static_cast<std::uint64_t>(salt))),
            static_cast<unsigned>(rate * 65536 + 0.5)};
  }
  // What those that stay are multiplied with.
  template <class Real> static constexpr Real scale(Real rate) {
    return rate < Real(1) ? Real(1) / (Real(1) - rate) : Real(0);
  }
  constexpr std::uint64_t four(std::uint64_t group) const { return mixed_bits(key ^ group); }
  constexpr bool drops(std::uint64_t draws, int k) const { return (draws >> (16 * k) & 0xffffU) < below; }
  constexpr bool drops(long long i) const {
    return drops(four(static_cast<std::uint64_t>(i) / 4), static_cast<int>(i % 4));
  }
};

}  // namespace graft
