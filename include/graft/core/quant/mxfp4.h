// SPDX-License-Identifier: Apache-2.0
// MXFP4 (OCP Microscaling Formats 1.0; gpt-oss): E2M1 numbers with a power of two as the scale of 32 elements of a row,
//     w = value(q) · 2^(s - 127)
// The scale is E8M0; 255 is NaN. Numbers are quantized as triton_kernels does it for transformers (numerics_details,
// downcast_to_mxfp with ROUND_UP): the scale is the smallest power of two for which no number exceeds 6.
#pragma once
#include <graft/core/quant/e2m1.h>
#include <graft/core/quant/ggml_block.h>

#include <bit>

namespace graft::quant_formats {

// MXFP4 of ggml: 32 elements of a row in 17 bytes, the exponent of the scale followed by 16 bytes of E2M1 codes. The
// lower halves of the bytes are elements 0 to 15, the upper halves elements 16 to 31,
//     w = 2^(e - 128) · table[q]
// The table has the numbers of E2M1 times two (ggml-common.h, kvalues_mxfp4; ggml-impl.h, ggml_e8m0_to_fp32_half). It
// is the arrangement of gpt-oss' experts in GGUF files; folders store codes and scales in two tensors (mxfp4_format).
inline constexpr signed char mxfp4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
struct mxfp4_block_format : ggml_layout<32, 17, 16, 39> {
  static constexpr const char* name = "mxfp4";
  // The scales of exponents 0 and 1 are subnormal floats.
  static constexpr affine block_scale(const unsigned char* from) {
    const std::uint32_t e = from[0];
    return {std::bit_cast<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23U)};
  }
  [[gnu::always_inline]] static constexpr void codes(const unsigned char* from, int r, signed char* to) {
    look_up_nibbles<mxfp4_table>(from + 1, r, to);
  }
};

struct mxfp4_format {
  static constexpr const char* name = "mxfp4";
  static constexpr int block = 32;
  static constexpr unsigned char not_a_number = 255;
  static constexpr quant_format format() {
    return {.type = e2m1::type, .scaled = scale_granularity::block, .block = block, .scales = dtype::f8_e8m0};
  }
  // 2^-127 is the only subnormal float among the scales.
  static constexpr float scale(unsigned char s) {
    if (s == not_a_number) return std::bit_cast<float>(0x7fc00000U);
    return std::bit_cast<float>(s == 0 ? 0x00400000U : static_cast<std::uint32_t>(s) << 23U);
  }
  // Quantizes a block and returns its scale.
  static constexpr unsigned char quantize(const float* from, unsigned char* to) {
    const auto bits = std::bit_cast<std::uint32_t>(abs_max(from, block) / e2m1::largest);
    const std::uint32_t up = (bits + 0x7fffffU) >> 23U;
    const auto s = static_cast<unsigned char>(up > 254 ? 254 : up);
    e2m1::quantize(from, block, scale(s), to);
    return s;
  }
};

}  // namespace graft::quant_formats
