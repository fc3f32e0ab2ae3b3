// SPDX-License-Identifier: Apache-2.0
// What a quantized layout (quant_layout) stores, as the registers of the skinny GEMM need it. A layout is a
// specialization of stored_values in a file of its own; without one it does not compile. It has
//
//   vec_at(row, vec)         where 16-byte vector vec of a row is in shared memory, so that eight rows are in
//                            different banks
//   words, load(…)           the stored values of a lane in a step of 64 columns, two chunks of 32
//   convert(…), or pair(…)   four stored bytes as two pairs of numbers; or, with a pair table, the pair of a byte
//   x_begins(t), x_of(…)     the columns of x in the same order
//   scale(…), row_scale(…)   where scales are inside the blocks; where a row or the tensor has one
//
// Per chunk of 32 columns a lane has 8 stored values of a row, which are its share of the A operands of two m16n8k16
// products; x, the B operand, is loaded in the same column order, so that no shuffles are needed.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

#include <type_traits>

namespace graft::gpu {

template <class T, quant_layout Form> struct stored_values;

template <quant_layout Form> struct stored_shape {
  static constexpr int block_bytes = facts_of(Form).chunk_bytes;  // bytes of 32 columns
  static constexpr int pitch = 2 * quant_steps * block_bytes;     // bytes of a unit's row in shared memory
  static constexpr int vectors = pitch / 16;
};

// x of lane t of a quad where it has eight neighboring columns of every 32.
template <class T> struct eight_columns_of_x {
  __device__ static int x_begins(int t) { return 8 * t; }
  __device__ __forceinline__ static uint4 x_of(const T* columns, int half) {
    return *reinterpret_cast<const uint4*>(columns + 32 * half);
  }
};

// Converts two bytes of a word to 16-bit floats: under a suitable exponent an integer is the mantissa of a float. The
// mantissa of bf16 has only seven bits, so the sign bit is subtracted separately: 128 + (c & 127) - (128 + (c & 128)).
template <class T> __device__ __forceinline__ std::uint32_t two_integers(std::uint32_t word, std::uint32_t which) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const std::uint32_t both = __byte_perm(word, 0x43434343U, which);
    return ptx::sub_bf16x2(both & 0xFF7FFF7FU, both & 0xFF80FF80U);
  } else {  // 1024 + 128 + c
    const std::uint32_t both = __byte_perm(word ^ 0x80808080U, 0x64646464U, which);
    return ptx::sub_f16x2(both, 0x64806480U);
  }
}
template <class T>
__device__ __forceinline__ void four_integers(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
  low = two_integers<T>(word, 0x4140), high = two_integers<T>(word, 0x4342);
}

}  // namespace graft::gpu
