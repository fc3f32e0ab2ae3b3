// SPDX-License-Identifier: Apache-2.0
// ggml's Q4_K: a block of 256 columns is a row of a unit. Its first 16 bytes have the scales of two levels, from which a
// warp computes scale and minimum of every run of 32 columns before it multiplies (weight_loader::expand_run_scales).
// The byte of column c of an even run has the value of column c + 32 in its upper half, so that a step of 64 columns is
// 32 bytes.
#pragma once
#include <graft/backend/gpu/kernels/quantized/stored_values.cuh>

namespace graft::gpu {

template <class T>
struct stored_values<T, quant_layout::q4_k> : stored_shape<quant_layout::q4_k>, eight_columns_of_x<T> {
  static constexpr int pitch = stored_shape<quant_layout::q4_k>::pitch, header_bytes = 16;
  static_assert(pitch == quant_formats::q4_k_format::bytes);
  using words = std::uint32_t[2];

  __device__ static std::uint32_t vec_at(int row, int vec) { return row * pitch + vec * 16; }
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
    const float2 both = ptx::load_shared_float2(unit + row * pitch + header_bytes + 32 * b + 8 * t);
    const std::uint32_t two[2] = {__float_as_uint(both.x), __float_as_uint(both.y)};
#pragma unroll
    for (int w = 0; w < 2; ++w) to[0][w] = two[w] & 0x0F0F0F0FU, to[1][w] = two[w] >> 4 & 0x0F0F0F0FU;
  }
  // Integers below 128 are the mantissa of a float under the exponent of 128 (bf16) or 1024 (half).
  __device__ __forceinline__ static void convert(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    low = two_small(word, 0x4140), high = two_small(word, 0x4342);
  }

  struct run_scales {
    float scale[4], minimum[4];
  };
  // Scales and minimums of runs 0 to 3 or 4 to 7 of a row.
  __device__ __forceinline__ static run_scales four_runs(std::uint32_t unit, int row, bool upper) {
    const float4 header = ptx::load_shared_float4(unit + vec_at(row, 0));
    const std::uint32_t block = __float_as_uint(header.x);
    const float scale = __half2float(__ushort_as_half(static_cast<unsigned short>(block & 0xFFFFU))),
                minimum = __half2float(__ushort_as_half(static_cast<unsigned short>(block >> 16)));
    const quant_formats::four_six_bits of(__float_as_uint(header.y), __float_as_uint(header.z),
                                          __float_as_uint(header.w), upper);
    run_scales to;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to.scale[j] = scale * static_cast<float>(of.scales >> 8 * j & 255U);
      to.minimum[j] = -minimum * static_cast<float>(of.minimums >> 8 * j & 255U);
    }
    return to;
  }
  // Two numbers 1, by which a product sums the columns of x, which the minimum of a run multiplies.
  static constexpr std::uint32_t ones = std::is_same_v<T, __nv_bfloat16> ? 0x3F803F80U : 0x3C003C00U;

 private:
  __device__ __forceinline__ static std::uint32_t two_small(std::uint32_t word, std::uint32_t which) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return ptx::sub_bf16x2(__byte_perm(word, 0x43434343U, which), 0x43004300U);
    else
      return ptx::sub_f16x2(__byte_perm(word, 0x64646464U, which), 0x64006400U);
  }
};

}  // namespace graft::gpu
