// SPDX-License-Identifier: Apache-2.0
// The NEON instructions that multiply int8 into int32 sums. SMMLA takes 8 bytes of two rows and of two tokens, and a
// register has four sums,
//     s[2 i + j] += Σ_k row_i[k] token_j[k]
// SDOT takes 16 bytes of one row and one token, and its four sums are partial sums of one product. nvcc, which cannot
// parse arm_neon.h, and other processors have no kernels here. (With -march=native on a Neoverse V1 g++ 12 has SMMLA
// and no SDOT.)
#pragma once
#if (defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)) && defined(__ARM_NEON) && \
    !defined(__CUDACC__)
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace graft::cpu::detail {

inline constexpr bool has_int8_mma = true;

#if defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr int mma_rows = 2;  // rows and tokens of an instruction

inline int32x4_t int8_mma(int32x4_t s, int8x16_t rows, int8x16_t tokens) { return vmmlaq_s32(s, rows, tokens); }
// The first 8 bytes of both rows, then the last 8 bytes.
inline void interleave_rows(const uint8x16_t (&of_row)[2], uint8x16_t (&halves)[2]) {
  const uint64x2_t a = vreinterpretq_u64_u8(of_row[0]), b = vreinterpretq_u64_u8(of_row[1]);
  halves[0] = vreinterpretq_u8_u64(vzip1q_u64(a, b)), halves[1] = vreinterpretq_u8_u64(vzip2q_u64(a, b));
}
inline float32x4_t broadcast_tokens(const float* two) {
  const float32x2_t both = vld1_f32(two);
  return vcombine_f32(both, both);
}
#else
inline constexpr int mma_rows = 1;

inline int32x4_t int8_mma(int32x4_t s, int8x16_t row, int8x16_t token) { return vdotq_s32(s, row, token); }
inline void interleave_rows(const uint8x16_t (&of_row)[1], uint8x16_t (&whole)[1]) { whole[0] = of_row[0]; }
inline float32x4_t broadcast_tokens(const float* one) { return vld1q_dup_f32(one); }
#endif
inline constexpr int mma_depth = 16 / mma_rows;                  // columns of a register
inline constexpr int registers_per_32_columns = 32 / mma_depth;  // registers that hold 32 columns of mma_rows rows

// Element i of each row, in the order of the sums of a register, for one row, two rows by two tokens, or four rows.
inline float32x4_t broadcast_rows(const float* const (&at)[1], long long i) { return vld1q_dup_f32(at[0] + i); }
inline float32x4_t broadcast_rows(const float* const (&at)[2], long long i) {
  return vcombine_f32(vld1_dup_f32(at[0] + i), vld1_dup_f32(at[1] + i));
}
inline float32x4_t broadcast_rows(const float* const (&at)[4], long long i) {
  float32x4_t v = vld1q_dup_f32(at[0] + i);
  v = vld1q_lane_f32(at[1] + i, v, 1);
  v = vld1q_lane_f32(at[2] + i, v, 2);
  return vld1q_lane_f32(at[3] + i, v, 3);
}
// Broadcasts half-precision numbers, which may be unaligned, in the order of broadcast_rows.
template <std::size_t Rows> float32x4_t broadcast_half_rows(const unsigned char* const (&at)[Rows], long long byte) {
  std::uint16_t half[4];
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(half + i, at[i * Rows / 4] + byte, 2);
  uint16x4_t v = vdup_n_u16(half[0]);
  v = vset_lane_u16(half[1], v, 1);
  v = vset_lane_u16(half[2], v, 2);
  return vcvt_f32_f16(vreinterpret_f16_u16(vset_lane_u16(half[3], v, 3)));
}

}  // namespace graft::cpu::detail
#else
namespace graft::cpu::detail {
inline constexpr bool has_int8_mma = false;
inline constexpr int mma_rows = 1;
}  // namespace graft::cpu::detail
#endif
