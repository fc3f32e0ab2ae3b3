// SPDX-License-Identifier: Apache-2.0
// Numbers by counter: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), a function of its argument alone. Dropout,
// draws and orders follow from a seed and a number, on every machine the same.
#pragma once
#include <cstdint>

namespace graft {

constexpr std::uint64_t mixed_bits(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

}  // namespace graft
