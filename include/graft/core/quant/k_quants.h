// SPDX-License-Identifier: Apache-2.0
// What the K-quants of ggml share: blocks of 256 elements whose runs have integer scales of their own, and the order of
// elements in packed bytes. A half of a block is 128 elements; formats with 2 bits per code in a byte store 32 elements
// of each quarter of a half in the same 32 bytes, one quarter in each pair of bits.
#pragma once
#include <graft/core/quant/ggml_block.h>

namespace graft::quant_formats {

// Run r of 16 elements: its half of the block, its quarter of that half, and the first of its elements in the quarter.
struct run_position {
  int half, quarter, first;
  constexpr explicit run_position(int r) : half(r / 8), quarter(r % 8 / 2), first(r % 2 * 16) {}
};
// Element i of a run in 64 bytes with 2 bits per element.
constexpr int two_bits_at(const unsigned char* from, int r, int i) {
  const run_position p(r);
  return bits_at(from[32 * p.half + p.first + i], 2 * p.quarter, 2);
}
// Element i of run r of 32 in 128 bytes with 4 bits per element: even runs lie in lower halves, odd ones in upper.
constexpr int four_bits_at(const unsigned char* from, int r, int i) {
  return bits_at(from[32 * (r / 2) + i], 4 * (r % 2), 4);
}
// Scales and minimums of 8 runs (Q4_K, Q5_K), 6 bits each in 12 bytes: bytes 0 to 3 and 4 to 7 hold the scales and the
// minimums of runs 0 to 3 and in their upper two bits those of runs 4 to 7, whose lower four bits are in bytes 8 to 11.
constexpr int six_bit_scale(const unsigned char* from, int r) {
  return r < 4 ? bits_at(from[r], 0, 6) : bits_at(from[r + 4], 0, 4) | bits_at(from[r - 4], 6, 2) << 4;
}
constexpr int six_bit_minimum(const unsigned char* from, int r) {
  return r < 4 ? bits_at(from[r + 4], 0, 6) : bits_at(from[r + 4], 4, 4) | bits_at(from[r], 6, 2) << 4;
}
// Those of runs 0 to 3, or 4 to 7 (`upper`), a byte each, from the 12 bytes as words.
struct four_six_bits {
  std::uint32_t scales = 0, minimums = 0;
  constexpr four_six_bits(std::uint32_t first, std::uint32_t second, std::uint32_t third, bool upper)
      : scales(upper ? (third & 0x0F0F0F0FU) | (first >> 2U & 0x30303030U) : first & 0x3F3F3F3FU),
        minimums(upper ? (third >> 4U & 0x0F0F0F0FU) | (second >> 2U & 0x30303030U) : second & 0x3F3F3F3FU) {}
};
// The second level: integers that multiply the block's scale and minimum. ggml subtracts minimums.
constexpr affine scaled(affine first, int scale, int minimum = 0) {
  return {first.scale * static_cast<float>(scale), -(first.minimum * static_cast<float>(minimum))};
}

}  // namespace graft::quant_formats
