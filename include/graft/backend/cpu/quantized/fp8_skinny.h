// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM of an FP8 weight with NEON, four tokens at a time: values are widened in registers (fp8_convert.h), and
// the scale of a row, times 2^8, is applied to its sum. A NaN in a row makes its sums NaN. On other processors there is
// no kernel here, and quantized/skinny.h dequantizes rows into a cache.
#pragma once
#include <graft/backend/cpu/quantized/dequantize.h>
#include <graft/core/array_size.h>

#include <limits>

namespace graft::cpu {

#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
namespace detail {

template <int Rows, int Tokens>
[[gnu::noinline, gnu::hot]] void fp8_tile(const weight_view& w, long long row, long long rows, const float* x,
                                          float sign, float* out, long long stride) {
  const unsigned char* quants[array_size(Rows)];
  uint8x16_t is_nan[array_size(Rows)];
  float32x4_t sum[array_size(Rows)][array_size(Tokens)];
  for (int r = 0; r < Rows; ++r) {
    quants[r] = static_cast<const unsigned char*>(w.data) + (row + std::min<long long>(r, rows - 1)) * w.cols;
    is_nan[r] = vdupq_n_u8(0);
    for (float32x4_t& s : sum[r]) s = vdupq_n_f32(0);
  }
  for (long long k = 0; k < w.cols; k += 16)
    for (int r = 0; r < Rows; ++r) {
      const uint8x16_t some = vld1q_u8(quants[r] + k), zero = vdupq_n_u8(0);
      is_nan[r] = vorrq_u8(is_nan[r], fp8_is_nan(some));
      const float16x8_t low = vreinterpretq_f16_u16(fp8_halves(vzip1q_u8(zero, some))),
                        high = vreinterpretq_f16_u16(fp8_halves(vzip2q_u8(zero, some)));
      const float32x4_t v[4] = {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low),
                                vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)};
      for (int t = 0; t < Tokens; ++t)
        for (int i = 0; i < 4; ++i) sum[r][t] = vfmaq_f32(sum[r][t], v[i], vld1q_f32(x + t * w.cols + k + 4 * i));
    }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    if (r >= rows) break;
    const float scale = scale_at(*w.quant, w.format.scaled == scale_granularity::row ? row + r : 0) * 256,
                by = vmaxvq_u8(is_nan[r]) != 0 ? std::numeric_limits<float>::quiet_NaN() : scale;
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) out[r + t * stride] += sign * by * vaddvq_f32(sum[r][t]);
  }
}

}  // namespace detail

// out[i + t stride] += sign · (row first + i of w) · x_t for `rows` rows. Returns false, with nothing done, for another
// format.
inline bool fp8_skinny_gemm(const weight_view& w, long long first, long long rows, const float* x, long long tokens,
                            float sign, float* out, long long stride) {
  if (w.format.type != dtype::f8_e4m3 || w.cols % 16 != 0) return false;
  auto by = [&]<int Rows, int Tokens>(long long t) {
    for (long long r = 0; r < rows; r += Rows)
      detail::fp8_tile<Rows, Tokens>(w, first + r, std::min<long long>(Rows, rows - r), x + t * w.cols, sign,
                                     out + r + t * stride, stride);
  };
  long long t = 0;
  for (; t + 4 <= tokens; t += 4) by.template operator()<2, 4>(t);
  for (; t + 2 <= tokens; t += 2) by.template operator()<2, 2>(t);
  for (; t < tokens; ++t) by.template operator()<4, 1>(t);
  return true;
}
#else
inline bool fp8_skinny_gemm(const weight_view&, long long, long long, const float*, long long, float, float*,
                            long long) {
  return false;
}
#endif

}  // namespace graft::cpu
