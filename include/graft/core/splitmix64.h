// SPDX-License-Identifier: Apache-2.0
// SplitMix64 as a counter-based random number generator (Steele, Lea, Flood 2014), what Philox is in PyTorch: a pure
// function of its argument. Dropout masks, random draws and shuffles follow from a seed and a counter, and are equal on
// every machine.
#pragma once
#include <cstdint>

namespace graft {

constexpr std::uint64_t splitmix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

}  // namespace graft
