// SPDX-License-Identifier: Apache-2.0
// Numbers as digits that are signed bytes. A number over the largest of its piece is three digits to the base 256,
//     v = (d0 256² + d1 256 + d2) / whole,    whole = 127 · 256²
// as exact as a float of the largest one's size. The tokens of a product lie as byte_products.h multiplies them: for
// the columns of a register the digits d0, d1 and d2 of as many tokens as it takes. One token by itself, where a register
// takes two, lies as 0, d0, d1, d2, so that any two neighbours are one load.
#pragma once
#include <graft/backend/cpu/byte_products.h>
#include <graft/backend/cpu/memory.h>

#include <algorithm>
#include <limits>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

inline constexpr float whole_digits = 127.0F * 65536.0F;

struct three_digits {
  int8x16_t d[3];
};
// With half a unit of each lower digit added, a digit is a byte; the lower ones are counted from -128.
inline three_digits digits_of(const int32x4_t (&whole)[4]) {
  uint16x8_t v[4];
  for (int i = 0; i < 4; ++i) v[i] = vreinterpretq_u16_s32(vaddq_s32(whole[i], vdupq_n_s32(0x8080)));
  const uint8x16_t low[2] = {vreinterpretq_u8_u16(vuzp1q_u16(v[0], v[1])),
                             vreinterpretq_u8_u16(vuzp1q_u16(v[2], v[3]))},
                   high[2] = {vreinterpretq_u8_u16(vuzp2q_u16(v[0], v[1])),
                              vreinterpretq_u8_u16(vuzp2q_u16(v[2], v[3]))},
                   sign = vdupq_n_u8(0x80);
  return {{vreinterpretq_s8_u8(vuzp1q_u8(high[0], high[1])),
           vreinterpretq_s8_u8(veorq_u8(vuzp2q_u8(low[0], low[1]), sign)),
           vreinterpretq_s8_u8(veorq_u8(vuzp1q_u8(low[0], low[1]), sign))}};
}
inline three_digits digits_of(const float32x4_t (&v)[4], float factor) {
  int32x4_t whole[4];
  for (int i = 0; i < 4; ++i) whole[i] = vcvtaq_s32_f32(vmulq_n_f32(v[i], factor));
  return digits_of(whole);
}
// The magnitude of the largest of a multiple of 32 numbers; what is no number is larger than all.
inline float largest_of(const float* x, long long n) {
  float32x4_t most[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
  for (long long i = 0; i < n; i += 16)
    for (int j = 0; j < 4; ++j) most[j] = vmaxq_f32(most[j], vabsq_f32(vld1q_f32(x + i + 4 * j)));
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3])));
}

class digits_of_x {
 public:
  // Tokens of n numbers, a multiple of 32. `even_first`: of 32 columns first the even ones. `unit`: what 1 in the last
  // digit's place of a sum is worth. False where a number is not finite, or all of a piece are so small that their
  // quotients would not be exact.
  bool make(const float* x, long long n, long long tokens, long long piece, bool even_first, float unit) {
    lone_ = tokens == 1 && product_side == 2;
    of_column_ = lone_ ? 4 : 3 * product_side, of_group_ = n * of_column_;
    pieces_ = (n + piece - 1) / piece, groups_ = (tokens + product_side - 1) / product_side;
    digits_.reserve(groups_ * of_group_), scales_.reserve(groups_ * pieces_ * product_side);
    if (tokens % product_side != 0 && !lone_) {  // a token of zeros beside the last
      std::fill_n(digits_.data() + (groups_ - 1) * of_group_, of_group_, static_cast<signed char>(0));
      std::fill_n(scales_.data() + (groups_ - 1) * pieces_ * product_side, pieces_ * product_side, 0.0F);
    }
    for (long long t = 0; t < tokens; ++t)
      for (long long p = 0; p < pieces_; ++p) {
        const long long first = p * piece, end = std::min(n, first + piece);
        const float most = largest_of(x + t * n + first, end - first);
        if (!(most <= std::numeric_limits<float>::max()) || (most > 0 && most < 1e-25F)) return false;
        float* const scale = scales_.data() + (t / product_side * pieces_ + p) * product_side;
        scale[t % product_side] = most / whole_digits * unit;
        if (lone_) scale[1] = scale[0];
        const float factor = most > 0 ? whole_digits / most : 0.0F;
        for (long long k = first; k < end; k += 32) put(x + t * n + k, factor, even_first, t, k);
      }
    return true;
  }
  const signed char* at(long long group, long long column) const {
    return digits_.data() + group * of_group_ + column * of_column_;
  }
  const float* scales(long long group, long long piece) const {
    return scales_.data() + (group * pieces_ + piece) * product_side;
  }
  long long groups() const { return groups_; }

 private:
  void put(const float* x, float factor, bool even_first, long long t, long long k) {
    float32x4_t v[2][4];
    for (int i = 0; i < 4; ++i)
      if (even_first) {
        const float32x4x2_t both = vld2q_f32(x + 8 * i);
        v[0][i] = both.val[0], v[1][i] = both.val[1];
      } else {
        v[0][i] = vld1q_f32(x + 4 * i), v[1][i] = vld1q_f32(x + 16 + 4 * i);
      }
    for (int half = 0; half < 2; ++half) {
      const three_digits all = digits_of(v[half], factor);
      signed char* const to = digits_.data() + t / product_side * of_group_ + (k + 16 * half) * of_column_;
      for (int d = 0; d < 3; ++d) {
        if constexpr (product_side == 1) {
          vst1q_s8(to + 16 * d, all.d[d]);
        } else {
          signed char* const here = to + (lone_ ? 8 + 8 * d : 16 * d + t % 2 * 8);
          vst1_s8(here, vget_low_s8(all.d[d])), vst1_s8(here + 8 * of_column_, vget_high_s8(all.d[d]));
        }
      }
      if (lone_) vst1_s8(to, vdup_n_s8(0)), vst1_s8(to + 8 * of_column_, vdup_n_s8(0));
    }
  }
  memory<signed char> digits_;
  memory<float> scales_;
  bool lone_ = false;
  long long of_column_ = 0, of_group_ = 0;  // bytes
  long long pieces_ = 0, groups_ = 0;
};

}  // namespace graft::cpu::detail
#endif
