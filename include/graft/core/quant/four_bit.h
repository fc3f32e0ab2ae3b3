// SPDX-License-Identifier: Apache-2.0
// Quantization shared by NF4 and FP4, as bitsandbytes stores them: two values per byte, the first in the upper half;
// one scale (the largest magnitude) per flat block of elements in row-major order. A format adds its table of 16 values
// in [-1, 1]. A number is multiplied by the reciprocal of its scale and rounded to the nearest table value by
// comparison with the midpoints of neighbors (bitsandbytes, backends/default/ops.py).
#pragma once
#include <graft/core/quant_format.h>

namespace graft::quant_formats {

constexpr bool is_four_bit_block(long long n) { return n >= 32 && n <= 4096 && (n & (n - 1)) == 0; }

constexpr unsigned nibble_at(const unsigned char* quants, long long i) {
  return i % 2 == 0 ? static_cast<unsigned>(quants[i / 2]) >> 4U : quants[i / 2] & 15U;
}

// Quantizes n numbers with one scale per block. Format::nearest(x) is the table index for x in [-1, 1]. bitsandbytes
// divides a last, incomplete block by its scale instead, and a missing second value is the one for 0.
template <class Format>
constexpr void quantize_four_bit(const float* from, long long n, int block, unsigned char* quants, float* scales) {
  constexpr float least = 1e-38F;  // smallest divisor
  for (long long b = 0; b * block < n; ++b) {
    const long long first = b * block, count = n - first < block ? n - first : block;
    const float most = abs_max(from + first, count);
    const bool whole = count == block;
    const float divisor = most < least ? least : most, factor = 1.0F / divisor;
    scales[b] = whole ? most : divisor;
    for (long long i = first; i < first + count; ++i) {
      const float x = whole ? from[i] * factor : from[i] / divisor;
      const unsigned code = Format::nearest(x < -1 ? -1.0F : x > 1 ? 1.0F : x);
      if (i % 2 == 0)
        quants[i / 2] = static_cast<unsigned char>(code << 4U | (i + 1 == n ? Format::nearest(0.0F) : 0U));
      else
        quants[i / 2] = static_cast<unsigned char>(quants[i / 2] | code);
    }
  }
}

}  // namespace graft::quant_formats
