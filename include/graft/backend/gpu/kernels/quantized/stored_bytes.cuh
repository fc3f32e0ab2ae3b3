// SPDX-License-Identifier: Apache-2.0
// int8 and FP8 (E4M3): a byte per value and one scale per row or for the tensor, which multiplies the sum of a row.
#pragma once
#include <cuda_fp8.h>
#include <graft/backend/gpu/kernels/quantized/stored_values.cuh>

namespace graft::gpu {

template <class T, quant_layout Form> struct stored_bytes : stored_shape<Form>, eight_columns_of_x<T> {
  static constexpr int pitch = stored_shape<Form>::pitch;
  using words = std::uint32_t[2];

  __device__ static std::uint32_t vec_at(int row, int vec) {
    return row * pitch + ((vec / 2 ^ (row % 8)) << 5) + vec % 2 * 16;
  }
  // Lane t of a quad has columns 8 t to 8 t + 7 of every 32.
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 v = ptx::load_shared_float2((unit + vec_at(row, 0) + t * 8) ^ ((2 * b + h) << 5));
      to[h][0] = __float_as_uint(v.x), to[h][1] = __float_as_uint(v.y);
    }
  }
};

template <class T> struct stored_values<T, quant_layout::int8> : stored_bytes<T, quant_layout::int8> {
  __device__ __forceinline__ static void convert(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    four_integers<T>(word, low, high);
  }
  __device__ static float row_scale(float stored) { return quant_formats::int8_format::dequantize(1, stored); }
};

template <class T> struct stored_values<T, quant_layout::fp8> : stored_bytes<T, quant_layout::fp8> {
  __device__ __forceinline__ static void convert(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    const auto two = [&](int h) {
      const auto codes = static_cast<__nv_fp8x2_storage_t>(word >> (16 * h));
      const float2 v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
      return pack<T>(v.x, v.y);
    };
    low = two(0), high = two(1);
  }
  __device__ static float row_scale(float stored) { return stored; }
};

}  // namespace graft::gpu
