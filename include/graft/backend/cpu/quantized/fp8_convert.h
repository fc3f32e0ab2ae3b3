// SPDX-License-Identifier: Apache-2.0
// Converts FP8 E4M3 to float: value(q) · scale, one at a time by a table of 256, and 32 at a time with NEON. Shifted
// right by one bit, the sign, exponent and fraction of E4M3 are those of half precision, also for subnormal numbers,
// and one instruction widens four of them:
//     value(q) = 2^8 half(q)
// Only NaN has to be tested for.
#pragma once
#include <graft/core/quant/fp8.h>

#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
#include <arm_neon.h>

namespace graft::cpu::detail {

// Eight values, each in the upper byte of two, as half precision.
inline uint16x8_t fp8_halves(uint8x16_t quants) {
  const int16x8_t moved = vshrq_n_s16(vreinterpretq_s16_u8(quants), 1);  // the arithmetic shift copies the sign bit
  return vbicq_u16(vreinterpretq_u16_s16(moved), vdupq_n_u16(0x4000));
}
inline uint8x16_t fp8_is_nan(uint8x16_t quants) {
  return vceqq_u8(vorrq_u8(quants, vdupq_n_u8(0x80)), vdupq_n_u8(0xff));
}

}  // namespace graft::cpu::detail
#endif

namespace graft::cpu {

#if defined(__CUDACC__)
inline namespace nvcc_host {
#endif

class fp8_values {
 public:
  fp8_values() : values_(every_value().v) {}
  float operator()(unsigned char code, float scale) const { return values_[code] * scale; }

#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
  static void dequantize(const unsigned char (&quants)[32], float scale, float* to) {
    const uint8x16_t zero = vdupq_n_u8(0), exponent = vdupq_n_u8(0x7f);
    for (int i = 0; i < 32; i += 16) {
      const uint8x16_t some = vld1q_u8(quants + i), is_nan = vandq_u8(detail::fp8_is_nan(some), exponent);
      widen(vzip1q_u8(zero, some), vzip1q_u8(zero, is_nan), scale * 256, to + i);
      widen(vzip2q_u8(zero, some), vzip2q_u8(zero, is_nan), scale * 256, to + i + 8);
    }
  }

 private:
  static void widen(uint8x16_t quants, uint8x16_t is_nan, float by, float* to) {
    const uint16x8_t half = vorrq_u16(detail::fp8_halves(quants), vreinterpretq_u16_u8(is_nan));
    vst1q_f32(to, vmulq_n_f32(vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(half))), by));
    vst1q_f32(to + 4, vmulq_n_f32(vcvt_high_f32_f16(vreinterpretq_f16_u16(half)), by));
  }
#endif

 private:
  struct table {
    float v[256];
    table() {
      for (int c = 0; c < 256; ++c) v[c] = quant_formats::fp8_format::value(static_cast<unsigned char>(c));
    }
  };
  static const table& every_value() {
    static const table made;
    return made;
  }
  const float* values_;
};

#if defined(__CUDACC__)
}  // namespace nvcc_host
#endif

}  // namespace graft::cpu
