// SPDX-License-Identifier: Apache-2.0
// Dequantizes 4-bit weights (NF4, FP4, E2M1, integers): table[q] · scale, 16 values at a time. The table stays in
// registers if the processor can look up there: AVX-512 and AVX2 permute floats; NEON permutes bytes, so its table is
// four byte planes. All else uses plain C++, also nvcc on arm64, which cannot parse arm_neon.h; an inline namespace
// makes its class a type of its own.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
#include <arm_neon.h>
#endif

namespace graft::cpu {

#if defined(__CUDACC__)
inline namespace nvcc_host {
#endif

// The value that comes first is in the upper half of a byte, or with LowerFirst in the lower one.
template <bool LowerFirst = false> class table16 {
 public:
#if defined(__AVX512F__) && defined(__AVX2__)
  explicit table16(const float* t) : all_(_mm512_loadu_ps(t)) {}
  // Dequantizes 8 bytes.
  void dequantize(const unsigned char* from, float scale, float* to) const {
    const __m512i quants = _mm512_cvtepu8_epi32(codes_of(from));
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_permutexvar_ps(quants, all_), _mm512_set1_ps(scale)));
  }
#elif defined(__AVX2__)
  explicit table16(const float* t) : low_(_mm256_loadu_ps(t)), high_(_mm256_loadu_ps(t + 8)) {}
  void dequantize(const unsigned char* from, float scale, float* to) const {
    const __m128i quants = codes_of(from);
    const __m256 by = _mm256_set1_ps(scale);
    _mm256_storeu_ps(to, _mm256_mul_ps(eight(_mm256_cvtepu8_epi32(quants)), by));
    _mm256_storeu_ps(to + 8, _mm256_mul_ps(eight(_mm256_cvtepu8_epi32(_mm_srli_si128(quants, 8))), by));
  }
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
  explicit table16(const float* t) : planes_(vld4q_u8(reinterpret_cast<const unsigned char*>(t))) {}
  void dequantize(const unsigned char* from, float scale, float* to) const {
    const uint8x8_t bytes = vld1_u8(from), upper = vshr_n_u8(bytes, 4), lower = vand_u8(bytes, vdup_n_u8(15));
    const uint8x8_t one = LowerFirst ? lower : upper, two = LowerFirst ? upper : lower;
    const uint8x16_t quants = vcombine_u8(vzip1_u8(one, two), vzip2_u8(one, two));
    const uint8x16_t b0 = vqtbl1q_u8(planes_.val[0], quants), b1 = vqtbl1q_u8(planes_.val[1], quants),
                     b2 = vqtbl1q_u8(planes_.val[2], quants), b3 = vqtbl1q_u8(planes_.val[3], quants);
    const uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(b0, b1)), low2 = vreinterpretq_u16_u8(vzip2q_u8(b0, b1)),
                     high = vreinterpretq_u16_u8(vzip1q_u8(b2, b3)), high2 = vreinterpretq_u16_u8(vzip2q_u8(b2, b3));
    vst1q_f32(to, vmulq_n_f32(vreinterpretq_f32_u16(vzip1q_u16(low, high)), scale));
    vst1q_f32(to + 4, vmulq_n_f32(vreinterpretq_f32_u16(vzip2q_u16(low, high)), scale));
    vst1q_f32(to + 8, vmulq_n_f32(vreinterpretq_f32_u16(vzip1q_u16(low2, high2)), scale));
    vst1q_f32(to + 12, vmulq_n_f32(vreinterpretq_f32_u16(vzip2q_u16(low2, high2)), scale));
  }
#else
  explicit table16(const float* t) : all_(t) {}
  void dequantize(const unsigned char* from, float scale, float* to) const {
    for (int i = 0; i < 8; ++i) {
      const unsigned upper = from[i] >> 4U, lower = from[i] & 15U;
      to[2 * i] = all_[LowerFirst ? lower : upper] * scale, to[2 * i + 1] = all_[LowerFirst ? upper : lower] * scale;
    }
  }
#endif

 private:
#if defined(__AVX2__)
  static __m128i codes_of(const unsigned char* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), half = _mm_set1_epi8(15);
    const __m128i upper = _mm_and_si128(_mm_srli_epi16(bytes, 4), half), lower = _mm_and_si128(bytes, half);
    return LowerFirst ? _mm_unpacklo_epi8(lower, upper) : _mm_unpacklo_epi8(upper, lower);
  }
#endif
#if defined(__AVX512F__) && defined(__AVX2__)
  __m512 all_;
#elif defined(__AVX2__)
  __m256 eight(__m256i quants) const {  // bits 0 to 2 look up in both halves of the table, bit 3 selects
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low_, quants), _mm256_permutevar8x32_ps(high_, quants),
                            _mm256_castsi256_ps(_mm256_slli_epi32(quants, 28)));
  }
  __m256 low_, high_;
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__CUDACC__)
  uint8x16x4_t planes_;
#else
  const float* all_;
#endif
};

#if defined(__CUDACC__)
}  // namespace nvcc_host
#endif

}  // namespace graft::cpu
