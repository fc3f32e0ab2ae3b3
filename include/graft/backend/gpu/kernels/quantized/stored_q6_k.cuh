// SPDX-License-Identifier: Apache-2.0
// ggml's Q6_K: a block of 256 columns is a row of a unit. Blocks of 210 bytes begin at any even address, so that a row
// in shared memory begins with up to 14 bytes before the block; how many is stored behind the copied vectors. Lane t of
// a quad has columns 4 t to 4 t + 3 of each run of 16, so that an m16n8k16 product has one scale per row.
#pragma once
#include <graft/backend/gpu/kernels/quantized/stored_values.cuh>

namespace graft::gpu {

template <class T> struct stored_values<T, quant_layout::q6_k> : stored_shape<quant_layout::q6_k> {
  static constexpr int pitch = stored_shape<quant_layout::q6_k>::pitch, run = 16;
  static constexpr int block_size = quant_formats::q6_k_format::bytes, copied_vectors = (14 + block_size) / 16,
                       shift_at = copied_vectors * 16;
  static_assert(copied_vectors * 16 >= 14 + block_size && shift_at + 4 <= pitch);
  using words = std::uint32_t[2];

  __device__ static std::uint32_t vec_at(int row, int vec) { return row * pitch + vec * 16; }
  // Step b has quarters 2 (b % 2) and the next of half b / 2 of the block, in halves of bytes and pairs of bits.
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
    const std::uint32_t at = unit + vec_at(row, 0), block = at + ptx::load_shared(at + shift_at) + 4 * t;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const std::uint32_t upper = word_at(block + 128 + b / 2 * 32 + 16 * w);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t lower = word_at(block + b / 2 * 64 + 32 * h + 16 * w);
        to[h][w] = (lower >> 4 * (b % 2) & 0x0F0F0F0FU) | (upper >> 2 * (2 * (b % 2) + h) & 0x03030303U) << 4;
      }
    }
  }
  // Integers below 128 are the mantissa of a float under the exponent of 128 (bf16) or 1024 (half); 32 is code 0.
  __device__ __forceinline__ static void convert(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    low = two_codes(word, 0x4140), high = two_codes(word, 0x4342);
  }
  __device__ static int x_begins(int t) { return 4 * t; }
  __device__ __forceinline__ static uint4 x_of(const T* columns, int half, int t = 0) {
    columns += x_begins(t);
    const uint2 first = *reinterpret_cast<const uint2*>(columns + 32 * half),
                second = *reinterpret_cast<const uint2*>(columns + 32 * half + 16);
    return make_uint4(first.x, first.y, second.x, second.y);
  }
  // Scales of runs 0 to 7 or 8 to 15 of a row, whose block begins `shift` bytes after it.
  __device__ __forceinline__ static void expand_scales(std::uint32_t unit, int row, bool upper, std::uint32_t to,
                                                       std::uint32_t shift) {
    const std::uint32_t block = unit + vec_at(row, 0) + shift;
    const auto bits = static_cast<unsigned short>(ptx::load_shared_half(block + 208));
    const float scale = __half2float(__ushort_as_half(bits));
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const std::uint32_t four = word_at(block + 192 + (upper ? 8 : 0) + 4 * w);
      const auto times = [&](int j) {
        return __float_as_uint(scale * static_cast<float>(static_cast<signed char>(four >> 8 * j & 255U)));
      };
      ptx::store_shared(to + (upper ? 32 : 0) + 16 * w, make_uint4(times(0), times(1), times(2), times(3)));
    }
  }

 private:
  // A word at an even address.
  __device__ __forceinline__ static std::uint32_t word_at(std::uint32_t at) {
    const std::uint32_t aligned = at & ~3U;
    return __funnelshift_r(ptx::load_shared(aligned), ptx::load_shared(aligned + 4), (at & 2U) * 8);
  }
  __device__ __forceinline__ static std::uint32_t two_codes(std::uint32_t word, std::uint32_t which) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return ptx::sub_bf16x2(__byte_perm(word, 0x43434343U, which), 0x43204320U);
    else
      return ptx::sub_f16x2(__byte_perm(word, 0x64646464U, which), 0x64206420U);
  }
};

}  // namespace graft::gpu
