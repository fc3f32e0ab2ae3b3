// SPDX-License-Identifier: Apache-2.0
// MXFP4 of ggml: 32 elements of a row in 17 bytes, the exponent of the scale followed by 16 bytes of E2M1 codes. The
// lower halves of the bytes are elements 0 to 15, the upper halves elements 16 to 31,
//     w = 2^(e - 128) · table[q]
// The table has the numbers of E2M1 times two (ggml-common.h, kvalues_mxfp4; ggml-impl.h, ggml_e8m0_to_fp32_half). It
// is the arrangement of gpt-oss' experts in GGUF files; folders store codes and scales in two tensors (mxfp4.h).
#pragma once
#include <graft/core/quant/ggml_block.h>

#include <bit>

namespace graft::quant_formats {

struct mxfp4_block_format : ggml_layout<32, 17, 16, 39> {
  static constexpr const char* name = "mxfp4";
  // The scales of exponents 0 and 1 are subnormal floats.
  static constexpr affine block_scale(const unsigned char* from) {
    const std::uint32_t e = from[0];
    return {std::bit_cast<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23U)};
  }
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from, int r, signed char* to) {
    constexpr signed char table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int i = 0; i < 16; ++i) to[i] = table[bits_at(from[1 + i], 4 * r, 4)];
  }
};

}  // namespace graft::quant_formats
