// SPDX-License-Identifier: Apache-2.0
// ggml's Q8_0 and Q4_0: blocks of 32 columns that begin with a half-precision scale of two bytes, so that the values of
// every other block are not word aligned.
#pragma once
#include <graft/backend/gpu/kernels/quantized/stored_values.cuh>

namespace graft::gpu {

// `Bytes` of a block are a lane's share of its values.
template <quant_layout Form, int Bytes> struct stored_ggml : stored_shape<Form> {
  static constexpr int pitch = stored_shape<Form>::pitch, block_bytes = stored_shape<Form>::block_bytes;
  using words = std::uint32_t[Bytes / 4];

  __device__ static std::uint32_t vec_at(int row, int vec) { return row * pitch + vec * 16; }
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) load_chunk(to[h], unit, row, 2 * b + h, t);
  }
  __device__ __forceinline__ static void load_chunk(words& to, std::uint32_t unit, int row, int c, int t) {
    const std::uint32_t at = unit + row * pitch + c * block_bytes + 2 + t * Bytes;
    if (c % 2 != 0) {
#pragma unroll
      for (int w = 0; w < Bytes / 4; ++w) to[w] = ptx::load_shared(at + 4 * w);
    } else {
      std::uint32_t before = ptx::load_shared(at - 2);
#pragma unroll
      for (int w = 0; w < Bytes / 4; ++w) {
        const std::uint32_t next = ptx::load_shared(at + 2 + 4 * w);
        to[w] = __byte_perm(before, next, 0x5432), before = next;
      }
    }
  }
  __device__ __forceinline__ static float scale(std::uint32_t unit, int row, int c) {
    const auto bits = static_cast<std::uint16_t>(ptx::load_shared_half(unit + row * pitch + c * block_bytes));
    return __half2float(__ushort_as_half(bits));
  }
};

template <class T>
struct stored_values<T, quant_layout::q8_0> : stored_ggml<quant_layout::q8_0, 8>, eight_columns_of_x<T> {
  __device__ __forceinline__ static void convert(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    four_integers<T>(word, low, high);
  }
};

// A byte has the values of column c, in its lower half, and c + 16. Lane t of a quad has bytes 4 t to 4 t + 3.
template <class T> struct stored_values<T, quant_layout::q4_0> : stored_ggml<quant_layout::q4_0, 4> {
  __device__ static std::uint32_t pair(const float (&)[16], int byte) {
    return pack<T>(quant_formats::q4_0_format::value(byte & 15), quant_formats::q4_0_format::value(byte >> 4));
  }
  __device__ static int x_begins(int t) { return 4 * t; }
  __device__ __forceinline__ static uint4 x_of(const T* columns, int half) {
    const uint2 low = *reinterpret_cast<const uint2*>(columns + 32 * half),
                high = *reinterpret_cast<const uint2*>(columns + 32 * half + 16);
    return make_uint4(__byte_perm(low.x, high.x, 0x5410), __byte_perm(low.x, high.x, 0x7632),
                      __byte_perm(low.y, high.y, 0x5410), __byte_perm(low.y, high.y, 0x7632));
  }
};

}  // namespace graft::gpu
