// SPDX-License-Identifier: Apache-2.0
// FP8 codes as numbers: value(code) scale, one at a time by a table of 256, and 32 at a time where NEON is. Moved by a bit, the
// sign, exponent and fraction of E4M3 are those of half precision, subnormal numbers too, and an instruction widens four:
//     value(code) = 2^8 half(code).
// Only what is no number has to be looked for.
#pragma once
#include <graft/core/encoding/fp8.h>

#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
#include <arm_neon.h>

namespace graft::cpu::detail {

// Bytes of eight codes, each the upper one of two, as half precision.
inline uint16x8_t fp8_halves(uint8x16_t codes) {
  const int16x8_t moved = vshrq_n_s16(vreinterpretq_s16_u8(codes), 1);  // the sign is there twice
  return vbicq_u16(vreinterpretq_u16_s16(moved), vdupq_n_u16(0x4000));
}
inline uint8x16_t fp8_no_numbers(uint8x16_t codes) {
  return vceqq_u8(vorrq_u8(codes, vdupq_n_u8(0x80)), vdupq_n_u8(0xff));
}

}  // namespace graft::cpu::detail
#endif

namespace graft::cpu {

#if defined(__CUDACC__)
inline namespace beside_kernels {
#endif

class fp8_numbers {
 public:
  fp8_numbers() : values_(every_value().v) {}
  float operator()(unsigned char code, float scale) const { return values_[code] * scale; }

#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
  static void decode(const unsigned char (&codes)[32], float scale, float* to) {
    const uint8x16_t zero = vdupq_n_u8(0), exponent = vdupq_n_u8(0x7f);
    for (int i = 0; i < 32; i += 16) {
      const uint8x16_t some = vld1q_u8(codes + i), none = vandq_u8(detail::fp8_no_numbers(some), exponent);
      widen(vzip1q_u8(zero, some), vzip1q_u8(zero, none), scale * 256, to + i);
      widen(vzip2q_u8(zero, some), vzip2q_u8(zero, none), scale * 256, to + i + 8);
    }
  }

 private:
  static void widen(uint8x16_t codes, uint8x16_t none, float by, float* to) {
    const uint16x8_t half = vorrq_u16(detail::fp8_halves(codes), vreinterpretq_u16_u8(none));
    vst1q_f32(to, vmulq_n_f32(vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(half))), by));
    vst1q_f32(to + 4, vmulq_n_f32(vcvt_high_f32_f16(vreinterpretq_f16_u16(half)), by));
  }
#endif

 private:
  struct table {
    float v[256];
    table() {
      for (int c = 0; c < 256; ++c) v[c] = encodings::fp8_codes::value(static_cast<unsigned char>(c));
    }
  };
  static const table& every_value() {
    static const table made;
    return made;
  }
  const float* values_;
};

#if defined(__CUDACC__)
}  // namespace beside_kernels
#endif

}  // namespace graft::cpu
