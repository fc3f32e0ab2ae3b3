// SPDX-License-Identifier: Apache-2.0
// What NF4 and FP4 have in common, as bitsandbytes stores them: two codes in a byte, the first in its upper half; one
// scale, the largest magnitude, for a block of the elements in row-major order, whatever the rows. A table of 16 numbers
// from -1 to 1 is all that an encoding of this kind adds. Numbers become codes by the midpoints between neighbours of the
// table, after a multiplication with the reciprocal of the scale (bitsandbytes, backends/default/ops.py).
#pragma once
#include <graft/core/encoding.h>

namespace graft::encodings {

constexpr bool is_four_bit_block(long long n) { return n >= 32 && n <= 4096 && (n & (n - 1)) == 0; }

constexpr unsigned four_bits_at(const unsigned char* codes, long long i) {
  return i % 2 == 0 ? static_cast<unsigned>(codes[i / 2]) >> 4U : codes[i / 2] & 15U;
}

// n numbers as codes and one scale a block. Codes::nearest(x) is the code of a number from -1 to 1.
template <class Codes>
constexpr void quantize_four_bits(const float* from, long long n, int block, unsigned char* codes, float* scales) {
  constexpr float least = 1e-38F;  // of what is divided by
  for (long long b = 0; b * block < n; ++b) {
    const long long first = b * block, count = n - first < block ? n - first : block;
    const float most = largest_magnitude(from + first, count);
    const bool whole = count == block;
    const float divisor = most < least ? least : most, factor = 1.0F / divisor;
    scales[b] = whole ? most : divisor;
    for (long long i = first; i < first + count; ++i) {
      const float x = whole ? from[i] * factor : from[i] / divisor;
      const unsigned code = Codes::nearest(x < -1 ? -1.0F : x > 1 ? 1.0F : x);
      if (i % 2 == 0)
        codes[i / 2] = static_cast<unsigned char>(code << 4U | (i + 1 == n ? Codes::nearest(0.0F) : 0U));
      else
        codes[i / 2] = static_cast<unsigned char>(codes[i / 2] | code);
    }
  }
}

}  // namespace graft::encodings
