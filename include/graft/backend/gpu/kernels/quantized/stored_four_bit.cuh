// SPDX-License-Identifier: Apache-2.0
// NF4 and FP4: two values per byte, the upper half first, and scales per block apart from them, of 64 columns or more
// or of 32. Blocks of 64 columns have one scale for a lane's whole step, so that a lane has 16 neighboring columns of
// it.
#pragma once
#include <graft/backend/gpu/kernels/quantized/stored_values.cuh>

namespace graft::gpu {

template <class T, quant_layout Form>
requires(has_block_scales(Form) || has_short_block_scales(Form)) struct stored_values<T, Form> : stored_shape<Form> {
  static constexpr int pitch = stored_shape<Form>::pitch;
  using words = std::uint32_t[1];

  __device__ static std::uint32_t vec_at(int row, int vec) {
    return row * pitch + ((vec ^ (row % 4 * 2 + row / 4 % 2)) << 4);
  }
  // Lane t of a quad has columns 16 t to 16 t + 15 of 64, or 8 t to 8 t + 7 of every 32.
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
    if constexpr (has_block_scales(Form)) {
      const float2 v = ptx::load_shared_float2((unit + vec_at(row, t / 2) + t % 2 * 8) ^ (b << 5));
      to[0][0] = __float_as_uint(v.x), to[1][0] = __float_as_uint(v.y);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) to[h][0] = ptx::load_shared((unit + vec_at(row, 0) + t * 4) ^ ((2 * b + h) << 4));
    }
  }
  __device__ static std::uint32_t pair(const float (&values)[16], int byte) {
    return pack<T>(values[byte >> 4], values[byte & 15]);
  }
  __device__ static int x_begins(int t) { return (has_block_scales(Form) ? 16 : 8) * t; }
  __device__ __forceinline__ static uint4 x_of(const T* columns, int half) {
    return *reinterpret_cast<const uint4*>(columns + (has_block_scales(Form) ? 8 : 32) * half);
  }
};

}  // namespace graft::gpu
