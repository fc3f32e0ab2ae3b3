// SPDX-License-Identifier: Apache-2.0
// Q4_K of ggml: 256 elements of a row in 144 bytes. The block's scale d and scale of minimums m in half precision are
// followed by 12 bytes with 6-bit scales and minimums of the 8 runs of 32 elements and by 128 bytes with the codes,
//     w = (d · scale) · q - m · minimum
#pragma once
#include <graft/core/quant/k_quant_search.h>

namespace graft::quant_formats {

struct q4_k_format : ggml_layout<256, 144, 32, 12> {
  static constexpr const char* name = "q4_k";
  static constexpr bool has_minimum = true;
  static constexpr affine block_scale(const unsigned char* from) { return {load_half(from), load_half(from + 2)}; }
  static constexpr affine run_scale(const unsigned char* from, affine first, int r) {
    return scaled(first, six_bit_scale(from + 4, r), six_bit_minimum(from + 4, r));
  }
  static constexpr int code(const unsigned char* from, int r, int i) { return four_bits_at(from + 16, r, i); }
  static void quantize(const float* from, unsigned char* to) {
    unsigned char q[block];
    quantize_six_bit_runs(from, 15, -1.0F, 20, to, q);
    for (int i = 0; i < 128; ++i) {
      const int first = i / 32 * 64 + i % 32;
      to[16 + i] = static_cast<unsigned char>(q[first] | q[first + 32] << 4U);
    }
  }
};

}  // namespace graft::quant_formats
