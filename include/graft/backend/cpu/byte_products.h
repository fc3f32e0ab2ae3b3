// SPDX-License-Identifier: Apache-2.0
// The instructions of NEON that multiply bytes and add up without rounding. SMMLA takes two rows of 8 bytes and two tokens
// of 8, four sums in a register,
//     s[2 i + j] += sum_k row_i[k] token_j[k],
// SDOT 16 bytes of one row and one token, its four sums parts of one. Where nvcc compiles, which cannot read
// arm_neon.h, and elsewhere there is nothing here. (With -march=native on a Neoverse V1 g++ 12 knows SMMLA and no SDOT.)
#pragma once
#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace graft::cpu::detail {

inline constexpr bool has_byte_products = true;

#if defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr int product_side = 2;  // rows, and tokens, in a register

inline int32x4_t add_byte_products(int32x4_t s, int8x16_t rows, int8x16_t tokens) {
  return vmmlaq_s32(s, rows, tokens);
}
// The first and the last 8 bytes of 16 of each row.
inline void beside_each_other(const uint8x16_t (&of_row)[2], uint8x16_t (&halves)[2]) {
  const uint64x2_t a = vreinterpretq_u64_u8(of_row[0]), b = vreinterpretq_u64_u8(of_row[1]);
  halves[0] = vreinterpretq_u8_u64(vzip1q_u64(a, b)), halves[1] = vreinterpretq_u8_u64(vzip2q_u64(a, b));
}
inline float32x4_t for_tokens(const float* two) {
  const float32x2_t both = vld1_f32(two);
  return vcombine_f32(both, both);
}
#else
inline constexpr int product_side = 1;

inline int32x4_t add_byte_products(int32x4_t s, int8x16_t row, int8x16_t token) { return vdotq_s32(s, row, token); }
inline void beside_each_other(const uint8x16_t (&of_row)[1], uint8x16_t (&whole)[1]) { whole[0] = of_row[0]; }
inline float32x4_t for_tokens(const float* one) { return vld1q_dup_f32(one); }
#endif
inline constexpr int product_depth = 16 / product_side;     // columns of a register
inline constexpr int registers_of_32 = 32 / product_depth;  // for 32 columns of as many rows as it takes

// A number of each row, in the order of sums in a register: of one row, of two and two tokens, of four.
inline float32x4_t for_rows(const float* const (&at)[1], long long i) { return vld1q_dup_f32(at[0] + i); }
inline float32x4_t for_rows(const float* const (&at)[2], long long i) {
  return vcombine_f32(vld1_dup_f32(at[0] + i), vld1_dup_f32(at[1] + i));
}
inline float32x4_t for_rows(const float* const (&at)[4], long long i) {
  float32x4_t v = vld1q_dup_f32(at[0] + i);
  v = vld1q_lane_f32(at[1] + i, v, 1);
  v = vld1q_lane_f32(at[2] + i, v, 2);
  return vld1q_lane_f32(at[3] + i, v, 3);
}
// The same of numbers in half precision, which may begin at any byte.
template <int Rows> float32x4_t halves_for_rows(const unsigned char* const (&at)[Rows], long long byte) {
  std::uint16_t half[4];
  for (int i = 0; i < 4; ++i) std::memcpy(half + i, at[i * Rows / 4] + byte, 2);
  uint16x4_t v = vdup_n_u16(half[0]);
  v = vset_lane_u16(half[1], v, 1);
  v = vset_lane_u16(half[2], v, 2);
  return vcvt_f32_f16(vreinterpret_f16_u16(vset_lane_u16(half[3], v, 3)));
}

}  // namespace graft::cpu::detail
#else
namespace graft::cpu::detail {
inline constexpr bool has_byte_products = false;
inline constexpr int product_side = 1;
}  // namespace graft::cpu::detail
#endif
