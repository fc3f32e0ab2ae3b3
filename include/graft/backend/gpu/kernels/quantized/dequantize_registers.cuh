// SPDX-License-Identifier: Apache-2.0
// Dequantization from shared memory into mma.sync A operands, in registers, for every quantized layout (quant_layout).
//
// Per chunk of 32 columns a lane has 8 stored values of a row, which are its share of the A operands of two m16n8k16
// products; x, the B operand, is loaded in the same column order (x_of), so that no shuffles are needed. 4-bit values
// are looked up two at a time in a table of 256 pairs with a copy per lane, so that an address is one byte permutation.
#pragma once
#include <cuda_fp8.h>
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/core/dtype.h>

#include <type_traits>

namespace graft::gpu {

namespace quantized_detail {
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
}  // namespace quantized_detail

template <class T, quant_layout Form> struct dequantizer {
  static constexpr bool has_table = has_pair_table(Form);
  static constexpr int pitch = unit_weight_bytes(Form) / unit_rows;  // bytes of a unit's row in shared memory
  static constexpr int block_bytes = pitch / (2 * quant_steps);      // bytes of 32 columns
  std::uint32_t table;                                               // shared address of this lane's table

  // ---- swizzle of 16-byte vectors, so that eight rows are in different banks ----------------------------------------
  static constexpr int vectors = pitch / 16;
  __device__ static std::uint32_t vec_at(int row, int vec) {
    if constexpr (has_block_scales(Form) || Form == quant_layout::short_block_scales)  // also 2 vectors of 4 rows
      return row * pitch + ((vec ^ (row % 4 * 2 + row / 4 % 2)) << 4);
    else if constexpr (has_row_scales(Form))
      return row * pitch + ((vec / 2 ^ (row % 8)) << 5) + vec % 2 * 16;
    else
      return row * pitch + vec * 16;
  }

  // ---- stored values to numbers -------------------------------------------------------------------------------------
  using words = std::uint32_t[has_row_scales(Form) || Form == quant_layout::q8_0 ? 2 : 1];
  using pairs = std::uint32_t[4];
  // Loads the stored values of a lane in step b of a row, 64 columns or two chunks. Lane t of a quad has columns 16 t
  // to 16 t + 15 where all 64 share a scale, else 8 t to 8 t + 7 of every 32 columns; of Q4_0 bytes 4 t to 4 t + 3.
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
    if constexpr (has_block_scales(Form)) {
      const float2 v = ptx::load_shared_float2((unit + vec_at(row, t / 2) + t % 2 * 8) ^ (b << 5));
      to[0][0] = __float_as_uint(v.x), to[1][0] = __float_as_uint(v.y);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) load_chunk(to[h], unit, row, 2 * b + h, t);
    }
  }
  __device__ __forceinline__ static void load_chunk(words& to, std::uint32_t unit, int row, int c, int t) {
    if constexpr (Form == quant_layout::short_block_scales) {
      to[0] = ptx::load_shared((unit + vec_at(row, 0) + t * 4) ^ (c << 4));
    } else if constexpr (has_row_scales(Form)) {
      const float2 v = ptx::load_shared_float2((unit + vec_at(row, 0) + t * 8) ^ (c << 5));
      to[0] = __float_as_uint(v.x), to[1] = __float_as_uint(v.y);
    } else {  // ggml blocks begin with a scale of 2 bytes, so the values of every other block are not word aligned
      const std::uint32_t at = unit + row * pitch + c * block_bytes + 2 + t * (Form == quant_layout::q8_0 ? 8 : 4);
      constexpr int count = sizeof(words) / 4;
      if (c % 2 != 0) {
#pragma unroll
        for (int w = 0; w < count; ++w) to[w] = ptx::load_shared(at + 4 * w);
      } else {
        std::uint32_t before = ptx::load_shared(at - 2);
#pragma unroll
        for (int w = 0; w < count; ++w) {
          const std::uint32_t next = ptx::load_shared(at + 2 + 4 * w);
          to[w] = __byte_perm(before, next, 0x5432), before = next;
        }
      }
    }
  }
  // Scale of a ggml block.
  __device__ __forceinline__ static float scale(std::uint32_t unit, int row, int c) {
    const auto bits = static_cast<std::uint16_t>(ptx::load_shared_half(unit + row * pitch + c * block_bytes));
    return __half2float(__ushort_as_half(bits));
  }
  // `Beyond` is a compile-time offset from `table` to the table.
  template <std::uint32_t Beyond = 0> __device__ __forceinline__ void dequantize(pairs& to, const words& from) const {
    if constexpr (has_table) {
#pragma unroll
      for (int b = 0; b < 4; ++b) to[b] = ptx::load_shared_beyond<Beyond>(__byte_perm(from[0], table, 0x7604 | b << 4));
    } else {
#pragma unroll
      for (int w = 0; w < 2; ++w) four_bytes(from[w], to[2 * w], to[2 * w + 1]);
    }
  }
  __device__ __forceinline__ static void four_bytes(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    if constexpr (Form == quant_layout::fp8) {
      const auto two = [&](int h) {
        const auto codes = static_cast<__nv_fp8x2_storage_t>(word >> (16 * h));
        const float2 v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
        return pack<T>(v.x, v.y);
      };
      low = two(0), high = two(1);
    } else {
      low = quantized_detail::two_integers<T>(word, 0x4140), high = quantized_detail::two_integers<T>(word, 0x4342);
    }
  }

  // ---- x in the same column order, per step of 64 columns -----------------------------------------------------------
  // Column offset of lane t of a quad.
  __device__ static int x_begins(int t) {
    return (Form == quant_layout::q4_0 ? 4 : has_block_scales(Form) ? 16 : 8) * t;
  }
  __device__ __forceinline__ static uint4 x_of(const T* columns, int half, int t = 0) {
    columns += x_begins(t);
    if constexpr (Form == quant_layout::q4_0) {  // a byte has the values of column c and c + 16
      const uint2 low = *reinterpret_cast<const uint2*>(columns + 32 * half),
                  high = *reinterpret_cast<const uint2*>(columns + 32 * half + 16);
      return make_uint4(__byte_perm(low.x, high.x, 0x5410), __byte_perm(low.x, high.x, 0x7632),
                        __byte_perm(low.y, high.y, 0x5410), __byte_perm(low.y, high.y, 0x7632));
    } else if constexpr (has_block_scales(Form)) {
      return *reinterpret_cast<const uint4*>(columns + 8 * half);
    } else {
      return *reinterpret_cast<const uint4*>(columns + 32 * half);
    }
  }

  // ---- the pair table: all threads of a CTA write it, two per entry -------------------------------------------------
  __device__ static void fill(std::uint32_t table, const float (&values)[16], int thread) {
    const int byte = thread / 2;
    const bool upper_first = Form != quant_layout::q4_0;
    const std::uint32_t pair = upper_first ? pack<T>(values[byte >> 4], values[byte & 15])
                                           : pack<T>(quant_formats::q4_0_format::value(byte & 15),
                                                     quant_formats::q4_0_format::value(byte >> 4));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      ptx::store_shared(table + byte * 256 + ((thread % 2 * 4 + j + byte) & 7) * 16,
                        make_uint4(pair, pair, pair, pair));
  }
};

}  // namespace graft::gpu
