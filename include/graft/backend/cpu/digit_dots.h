// SPDX-License-Identifier: Apache-2.0
// One token and rows of four-bit codes by a processor's products of bytes. A number of the table, and a number of x over
// the largest of its block, is three digits to the base 128:
//     v = (d0 128² + d1 128 + d2) / whole,    whole = 127 · 128²
// as exact as a float of that size. A permutation of bytes looks the digits of 16 codes up at once; the six products of
// digits that count are sums of integers, without rounding, and only whole blocks are added as floats. NEON has both
// instructions; where nvcc compiles, which cannot read them, and elsewhere there is nothing here.
#pragma once
#include <graft/backend/cpu/codes.h>
#include <graft/backend/cpu/memory.h>

#if defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_NEON) && !defined(__CUDACC__)
#include <arm_neon.h>

namespace graft::cpu::detail {

inline constexpr float whole_digits = 127.0F * 16384.0F;

inline void digits_of(float v, signed char* to, long long apart) {
  const int all = static_cast<int>(v + (v < 0 ? -0.5F : 0.5F)), first = (all + 8192) >> 14, rest = all - first * 16384;
  const int second = (rest + 64) >> 7;
  to[0] = static_cast<signed char>(first), to[apart] = static_cast<signed char>(second);
  to[2 * apart] = static_cast<signed char>(rest - second * 128);
}
// x, and what each block was divided by. `apart`: of 32 numbers first those with codes in the upper halves of bytes.
class digits_of_x {
 public:
  // False where a number is not finite, or all of a block are so small that their quotients would not be exact.
  bool make(const float* x, long long n, long long block, bool apart = true) {
    n_ = n, digits_.reserve(3 * n), scales_.reserve(n / block);
    for (long long b = 0; b < n / block; ++b) {
      const float* const from = x + b * block;
      const float most = largest_magnitude(from, block);
      float all_finite = 0;
      for (long long i = 0; i < block; ++i) all_finite += from[i] * 0.0F;
      if (all_finite != 0 || (most > 0 && most < 1e-25F)) return false;
      scales_.data()[b] = most / whole_digits * (16384.0F / whole_digits);
      const float factor = most > 0 ? whole_digits / most : 0.0F;
      for (long long i = 0; i < block; ++i)
        digits_of(from[i] * factor, digits_.data() + b * block + (apart ? i / 32 * 32 + i % 2 * 16 + i % 32 / 2 : i),
                  n);
    }
    return true;
  }
  int8x16_t at(int digit, long long i) const { return vld1q_s8(digits_.data() + digit * n_ + i); }
  float scale(long long b) const { return scales_.data()[b]; }

 private:
  memory<signed char> digits_;
  memory<float> scales_;
  long long n_ = 0;
};
// Sums of products of digits: those worth 1, 1/128 and 1/128².
struct digit_sums {
  int32x4_t first = vdupq_n_s32(0), second = first, third = first;

  void add(const int8x16_t (&table)[3], uint8x16_t codes, const int8x16_t (&x)[3]) {
    const int8x16_t a = vqtbl1q_s8(table[0], codes), b = vqtbl1q_s8(table[1], codes), c = vqtbl1q_s8(table[2], codes);
    first = vdotq_s32(first, a, x[0]);
    second = vdotq_s32(vdotq_s32(second, a, x[1]), b, x[0]);
    third = vdotq_s32(vdotq_s32(vdotq_s32(third, a, x[2]), b, x[1]), c, x[0]);
  }
  float32x4_t value() const {  // counted in units of the third
    const int32x4_t low = vaddq_s32(vshlq_n_s32(second, 7), third);
    return vfmaq_n_f32(vcvtq_f32_s32(low), vcvtq_f32_s32(first), 16384.0F);
  }
};

// out[i] += sign (row first + i of w) x for `rows` rows, two at a time. Rows are whole blocks.
inline void digit_dots(const weight_view& w, long long first, long long rows, const digits_of_x& x, float sign,
                       float* out) {
  const float* const values = w.how.codes == dtype::nf4 ? encodings::nf4_codes::table : encodings::fp4_codes::table;
  signed char digits[3][16];
  for (int c = 0; c < 16; ++c) digits_of(values[c] * whole_digits, digits[0] + c, 16);
  const int8x16_t table[3] = {vld1q_s8(digits[0]), vld1q_s8(digits[1]), vld1q_s8(digits[2])};
  const uint8x16_t lower = vdupq_n_u8(15);
  const long long block = w.how.block, blocks = w.cols / block;
  for (long long i = 0; i < rows; i += 2) {
    const long long row[2] = {first + i, first + std::min(i + 1, rows - 1)};
    const unsigned char* codes[2];
    for (int r = 0; r < 2; ++r) codes[r] = static_cast<const unsigned char*>(w.codes) + row[r] * w.cols / 2;
    float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (long long b = 0; b < blocks; ++b) {
      digit_sums in_block[2];
      for (long long k = b * block; k < (b + 1) * block; k += 32) {
        const int8x16_t even[3] = {x.at(0, k), x.at(1, k), x.at(2, k)};
        const int8x16_t odd[3] = {x.at(0, k + 16), x.at(1, k + 16), x.at(2, k + 16)};
        for (int r = 0; r < 2; ++r) {
          const uint8x16_t bytes = vld1q_u8(codes[r] + k / 2);
          in_block[r].add(table, vshrq_n_u8(bytes, 4), even);
          in_block[r].add(table, vandq_u8(bytes, lower), odd);
        }
      }
      for (int r = 0; r < 2; ++r)
        sum[r] = vfmaq_n_f32(sum[r], in_block[r].value(), scale_at(*w.beside, row[r] * blocks + b) * x.scale(b));
    }
    for (int r = 0; r < 2 && i + r < rows; ++r) out[i + r] += sign * vaddvq_f32(sum[r]);
  }
}

}  // namespace graft::cpu::detail
#endif
