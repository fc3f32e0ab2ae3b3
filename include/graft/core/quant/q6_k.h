// SPDX-License-Identifier: Apache-2.0
// Q6_K of ggml: 256 elements of a row in 210 bytes. 128 bytes hold the lower four bits of the codes, 64 bytes their
// upper two, 16 signed bytes the scales of the runs of 16 elements, then follows the block's scale d,
//     w = d · scale · (q - 32)
#pragma once
#include <graft/core/quant/k_quant_search.h>

namespace graft::quant_formats {

struct q6_k_format : ggml_layout<256, 210, 16, 14> {
  static constexpr const char* name = "q6_k";
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from + 208)}; }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    return scaled(first, static_cast<signed char>(from[192 + r]));
  }
  // In each half of a block, the lower halves of 64 bytes belong to quarters 0 and 1, the upper halves to quarters 2
  // and 3.
  static constexpr int code(const unsigned char* from, int r, int i) {
    const run_position p(r);
    const unsigned char low = from[64 * p.half + 32 * (p.quarter % 2) + p.first + i];
    return (bits_at(low, 4 * (p.quarter / 2), 4) | two_bits_at(from + 128, r, i) << 4) - 32;
  }
  static void quantize(const float* from, unsigned char* to) {
    unsigned char q[block];
    float scales[runs], most = 0;
    for (int r = 0; r < runs; ++r) {
      scales[r] = search_symmetric_run(from + run * r, q + run * r);
      if (magnitude_of(scales[r]) > magnitude_of(most)) most = scales[r];
    }
    for (int i = 0; i < bytes; ++i) to[i] = 0;
    if (magnitude_of(most) < 1e-15F) return;
    const float factor = -128.0F / most;
    store_half(1 / factor, to + 208);
    const float block_scale = load_half(to + 208);
    for (int r = 0; r < runs; ++r) {
      const int stored = nearest_even(rounded_product(factor, scales[r]));
      to[192 + r] = static_cast<unsigned char>(stored < 127 ? stored : 127);
      const float scale = block_scale * static_cast<float>(static_cast<signed char>(to[192 + r]));
      if (scale == 0) continue;
      for (int i = run * r; i < run * (r + 1); ++i)
        q[i] = static_cast<unsigned char>(nearest_code(from[i] / scale, -32, 31) + 32);
    }
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 32; ++i) {
        const unsigned char* const c = q + 128 * half + i;
        to[64 * half + i] = static_cast<unsigned char>((c[0] & 15U) | (c[64] & 15U) << 4U);
        to[64 * half + 32 + i] = static_cast<unsigned char>((c[32] & 15U) | (c[96] & 15U) << 4U);
        to[128 + 32 * half + i] =
            static_cast<unsigned char>(c[0] >> 4U | (c[32] >> 4U) << 2U | (c[64] >> 4U) << 4U | (c[96] >> 4U) << 6U);
      }
  }
};

}  // namespace graft::quant_formats
