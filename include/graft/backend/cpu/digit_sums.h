// SPDX-License-Identifier: Apache-2.0
// Sums of products of digits of some rows and some tokens (x_digits.h). Of the products of digits i and j those with i + j
// up to 2 count; each i + j has a sum of its own, in whole numbers, and a piece of the columns is scaled and added as
//     sum += scale (256² s0 + 256 s1 + s2).
#pragma once
#include <graft/backend/cpu/x_digits.h>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

inline float32x4_t value_of(int32x4_t s0, int32x4_t s1, int32x4_t s2) {
  return vfmaq_n_f32(vcvtq_f32_s32(vmlaq_n_s32(s2, s1, 256)), vcvtq_f32_s32(s0), 65536.0F);
}

// As many rows and tokens as a register takes.
struct full_sums {
  static constexpr int groups = 1;        // of rows
  static constexpr int x_bytes = 3 * 16;  // for the columns of a register
  int32x4_t s[3];
  float32x4_t sum = vdupq_n_f32(0);

  void begin() { s[0] = s[1] = s[2] = vdupq_n_s32(0); }
  template <int Digits> void add(int, const int8x16_t (&codes)[Digits], const signed char* x) {
    for (int i = 0; i < Digits; ++i)
      for (int j = 0; i + j < 3; ++j) s[i + j] = add_byte_products(s[i + j], codes[i], vld1q_s8(x + 16 * j));
  }
  void end(float32x4_t scale) { sum = vfmaq_f32(sum, value_of(s[0], s[1], s[2]), scale); }
  // out[r + t stride] += sign sum for `rows` rows and `tokens` tokens.
  void give(float sign, float* out, long long stride, long long rows, long long tokens) const {
    if constexpr (product_side == 1) {
      if (rows > 0) *out += sign * vaddvq_f32(sum);
    } else {
      for (int r = 0; r < 2 && r < rows; ++r)
        for (int t = 0; t < 2 && t < tokens; ++t) out[r + t * stride] += sign * sum[2 * r + t];
    }
  }
};

// Four rows and one token where a register takes two and two: the token's second and third digit, or its first and second,
// are the two, so that s1 and s2 lie beside each other; s0 lies beside nothing that counts.
struct lone_sums {
  static constexpr int groups = 2;
  static constexpr int x_bytes = 4 * 8;
  int32x4_t first[2], rest[2];
  float32x4_t sum = vdupq_n_f32(0);

  void begin() { first[0] = first[1] = rest[0] = rest[1] = vdupq_n_s32(0); }
  template <int Digits> void add(int group, const int8x16_t (&codes)[Digits], const signed char* x) {
    first[group] = add_byte_products(first[group], codes[0], vld1q_s8(x + 8));
    rest[group] = add_byte_products(rest[group], codes[0], vld1q_s8(x + 16));
    if constexpr (Digits == 3) {
      rest[group] = add_byte_products(rest[group], codes[1], vld1q_s8(x + 8));
      rest[group] = add_byte_products(rest[group], codes[2], vld1q_s8(x));
    }
  }
  void end(float32x4_t scale) {
    const int32x4_t s0 = vuzp1q_s32(first[0], first[1]), s1 = vuzp1q_s32(rest[0], rest[1]),
                    s2 = vuzp2q_s32(rest[0], rest[1]);
    sum = vfmaq_f32(sum, value_of(s0, s1, s2), scale);
  }
  void give(float sign, float* out, long long, long long rows, long long) const {
    for (int r = 0; r < 4 && r < rows; ++r) out[r] += sign * sum[r];
  }
};

}  // namespace graft::cpu::detail
#endif
