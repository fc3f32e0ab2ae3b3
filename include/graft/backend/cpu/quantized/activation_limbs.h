// SPDX-License-Identifier: Apache-2.0
// Activations as limbs (int8 decomposition). A number v, divided by the largest magnitude of its chunk, is three signed
// bytes to the base 256,
//     v / most = (d0 256² + d1 256 + d2) / limb_scale,    limb_scale = 127 · 256²
// which is as exact as a float of the largest magnitude. Limbs are stored in the order in which neon_int8.h multiplies
// them: for the columns of a register the limbs d0, d1 and d2 of mma_rows tokens. A single token, where a register
// takes two, is stored as 0, d0, d1, d2, so that any two neighbors are one load.
#pragma once
#include <graft/backend/cpu/quantized/neon_int8.h>
#include <graft/backend/cpu/runtime/memory.h>

#include <algorithm>
#include <limits>

#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
namespace graft::cpu::detail {

inline constexpr float limb_scale = 127.0F * 65536.0F;

struct three_limbs {
  int8x16_t d[3];
};
// Adding 0x8080 biases the two lower limbs by 128, so that the bytes of the sum are the limbs; flipping the top bit of
// the lower ones removes the bias.
inline three_limbs limbs_of(const int32x4_t (&whole)[4]) {
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
inline three_limbs limbs_of(const float32x4_t (&v)[4], float factor) {
  int32x4_t whole[4];
  for (int i = 0; i < 4; ++i) whole[i] = vcvtaq_s32_f32(vmulq_n_f32(v[i], factor));
  return limbs_of(whole);
}
// The largest magnitude of n numbers, a multiple of 32; NaN if one of them is NaN.
inline float abs_max_of(const float* x, long long n) {
  float32x4_t most[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
  for (long long i = 0; i < n; i += 16)
    for (int j = 0; j < 4; ++j) most[j] = vmaxq_f32(most[j], vabsq_f32(vld1q_f32(x + i + 4 * j)));
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3])));
}

class activation_limbs {
 public:
  // Splits tokens of n numbers, a multiple of 32. `deinterleaved` stores the even ones of 32 columns first. `unit` is a
  // factor of all scales. Returns false if a number is not finite or the largest of a chunk is so small that quotients
  // would not be exact.
  bool make(const float* x, long long n, long long tokens, long long chunk, bool deinterleaved, float unit) {
    single_token_ = tokens == 1 && mma_rows == 2;
    bytes_per_column_ = single_token_ ? 4 : 3 * mma_rows, bytes_per_group_ = n * bytes_per_column_;
    chunks_ = (n + chunk - 1) / chunk, groups_ = (tokens + mma_rows - 1) / mma_rows;
    limbs_.reserve(groups_ * bytes_per_group_), scales_.reserve(groups_ * chunks_ * mma_rows);
    if (tokens % mma_rows != 0 && !single_token_) {  // the last register is padded with a token of zeros
      std::fill_n(limbs_.data() + (groups_ - 1) * bytes_per_group_, bytes_per_group_, static_cast<signed char>(0));
      std::fill_n(scales_.data() + (groups_ - 1) * chunks_ * mma_rows, chunks_ * mma_rows, 0.0F);
    }
    for (long long t = 0; t < tokens; ++t)
      for (long long p = 0; p < chunks_; ++p) {
        const long long first = p * chunk, end = std::min(n, first + chunk);
        const float most = abs_max_of(x + t * n + first, end - first);
        if (!(most <= std::numeric_limits<float>::max()) || (most > 0 && most < 1e-25F)) return false;
        float* const scale = scales_.data() + (t / mma_rows * chunks_ + p) * mma_rows;
        scale[t % mma_rows] = most / limb_scale * unit;
        if (single_token_) scale[1] = scale[0];
        const float factor = most > 0 ? limb_scale / most : 0.0F;
        for (long long k = first; k < end; k += 32) put(x + t * n + k, factor, deinterleaved, t, k);
      }
    return true;
  }
  const signed char* at(long long group, long long column) const {
    return limbs_.data() + group * bytes_per_group_ + column * bytes_per_column_;
  }
  const float* scales(long long group, long long chunk) const {
    return scales_.data() + (group * chunks_ + chunk) * mma_rows;
  }
  long long groups() const { return groups_; }

 private:
  void put(const float* x, float factor, bool deinterleaved, long long t, long long k) {
    float32x4_t v[2][4];
    for (int i = 0; i < 4; ++i)
      if (deinterleaved) {
        const float32x4x2_t both = vld2q_f32(x + 8 * i);
        v[0][i] = both.val[0], v[1][i] = both.val[1];
      } else {
        v[0][i] = vld1q_f32(x + 4 * i), v[1][i] = vld1q_f32(x + 16 + 4 * i);
      }
    for (int half = 0; half < 2; ++half) {
      const three_limbs all = limbs_of(v[half], factor);
      signed char* const to = limbs_.data() + t / mma_rows * bytes_per_group_ + (k + 16 * half) * bytes_per_column_;
      for (int d = 0; d < 3; ++d) {
        if constexpr (mma_rows == 1) {
          vst1q_s8(to + 16 * d, all.d[d]);
        } else {
          signed char* const here = to + (single_token_ ? 8 + 8 * d : 16 * d + t % 2 * 8);
          vst1_s8(here, vget_low_s8(all.d[d])), vst1_s8(here + 8 * bytes_per_column_, vget_high_s8(all.d[d]));
        }
      }
      if (single_token_) vst1_s8(to, vdup_n_s8(0)), vst1_s8(to + 8 * bytes_per_column_, vdup_n_s8(0));
    }
  }
  memory<signed char> limbs_;
  memory<float> scales_;
  bool single_token_ = false;
  long long bytes_per_column_ = 0, bytes_per_group_ = 0;
  long long chunks_ = 0, groups_ = 0;
};

}  // namespace graft::cpu::detail
#endif
