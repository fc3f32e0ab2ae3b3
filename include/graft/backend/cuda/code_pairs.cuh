// SPDX-License-Identifier: Apache-2.0
// Codes in shared memory as pairs of numbers in the registers from which the tensor cores read them. A lane has eight
// codes of a row for every 32 columns, a chunk: its share of two products, whose other factors, x, it keeps in the same
// order. Codes of four bits are looked up two at a time in a table of 256 pairs, which every lane has for itself: the
// address of an entry is one instruction.
#pragma once
#include <cuda_fp8.h>
#include <graft/backend/cuda/code_choice.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/core/dtype.h>

#include <type_traits>

namespace graft::cuda {

namespace code_detail {
// What these two read and write is theirs alone, so the compiler may move them.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same where there is no sum yet.
template <class T>
__device__ __forceinline__ void multiply_first(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                               std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}
template <std::uint32_t Beyond> __device__ __forceinline__ std::uint32_t table_entry(std::uint32_t address) {
  std::uint32_t v;
  asm("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(address), "n"(Beyond));
  return v;
}
// Two of the bytes of a word as numbers: behind the right exponent an integer is the last places of a number. Those of
// bf16 are seven, so that the sign, the eighth, is subtracted by itself: 128 + (c & 127) - (128 + (c & 128)).
template <class T> __device__ __forceinline__ std::uint32_t two_integers(std::uint32_t word, std::uint32_t which) {
  std::uint32_t v;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const std::uint32_t both = __byte_perm(word, 0x43434343U, which);
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(both & 0xFF7FFF7FU), "r"(both & 0xFF80FF80U));
  } else {  // 1024 + 128 + c
    const std::uint32_t both = __byte_perm(word ^ 0x80808080U, 0x64646464U, which);
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(both), "r"(0x64806480U));
  }
  return v;
}
}  // namespace code_detail

template <class T, code_form Form> struct code_pairs {
  static constexpr bool has_table = has_code_table(Form);
  static constexpr int pitch = bytes_of_unit(Form) / code_rows;  // of a row of a unit in shared memory
  static constexpr int block_bytes = pitch / (2 * code_steps);   // of 32 columns
  std::uint32_t table;                                           // of this lane

  // ---- where sixteen-byte pieces lie, so that eight rows are in different banks -------------------------------------
  static constexpr int pieces = pitch / 16;
  __device__ static std::uint32_t piece_at(int row, int piece) {
    if constexpr (has_long_runs(Form) || Form == code_form::short_runs)  // two pieces of four rows, too
      return row * pitch + ((piece ^ (row % 4 * 2 + row / 4 % 2)) << 4);
    else if constexpr (has_scaled_rows(Form))
      return row * pitch + ((piece / 2 ^ (row % 8)) << 5) + piece % 2 * 16;
    else
      return row * pitch + piece * 16;
  }

  // ---- from codes to numbers ----------------------------------------------------------------------------------------
  using words = std::uint32_t[has_scaled_rows(Form) || Form == code_form::q8_0 ? 2 : 1];
  using pairs = std::uint32_t[4];
  // The codes of a lane in 64 columns, step b of a row: those of two chunks. Lane t of a quad has 16 t to 16 t + 15
  // where all share a scale, else of every 32 columns 8 t to 8 t + 7; of Q4_0 those of bytes 4 t to 4 t + 3.
  __device__ __forceinline__ static void load(words (&to)[2], std::uint32_t unit, int row, int b, int t) {
    if constexpr (has_long_runs(Form)) {
      const float2 v = ptx::load_shared_float2((unit + piece_at(row, t / 2) + t % 2 * 8) ^ (b << 5));
      to[0][0] = __float_as_uint(v.x), to[1][0] = __float_as_uint(v.y);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) load_chunk(to[h], unit, row, 2 * b + h, t);
    }
  }
  __device__ __forceinline__ static void load_chunk(words& to, std::uint32_t unit, int row, int c, int t) {
    if constexpr (Form == code_form::short_runs) {
      to[0] = ptx::load_shared((unit + piece_at(row, 0) + t * 4) ^ (c << 4));
    } else if constexpr (has_scaled_rows(Form)) {
      const float2 v = ptx::load_shared_float2((unit + piece_at(row, 0) + t * 8) ^ (c << 5));
      to[0] = __float_as_uint(v.x), to[1] = __float_as_uint(v.y);
    } else {  // behind a scale of two bytes: the codes of every other block begin in the middle of a word
      const std::uint32_t at = unit + row * pitch + c * block_bytes + 2 + t * (Form == code_form::q8_0 ? 8 : 4);
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
  // The scale of a block of ggml.
  __device__ __forceinline__ static float scale(std::uint32_t unit, int row, int c) {
    const auto bits = static_cast<std::uint16_t>(ptx::load_shared_half(unit + row * pitch + c * block_bytes));
    return __half2float(__ushort_as_half(bits));
  }
  // Beyond: how far behind `table` the table begins.
  template <std::uint32_t Beyond = 0> __device__ __forceinline__ void decode(pairs& to, const words& from) const {
    if constexpr (has_table) {
#pragma unroll
      for (int b = 0; b < 4; ++b)
        to[b] = code_detail::table_entry<Beyond>(__byte_perm(from[0], table, 0x7604 | b << 4));
    } else {
#pragma unroll
      for (int w = 0; w < 2; ++w) four_bytes(from[w], to[2 * w], to[2 * w + 1]);
    }
  }
  __device__ __forceinline__ static void four_bytes(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
    if constexpr (Form == code_form::fp8) {
      const auto two = [&](int h) {
        const auto codes = static_cast<__nv_fp8x2_storage_t>(word >> (16 * h));
        const float2 v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
        return pack<T>(v.x, v.y);
      };
      low = two(0), high = two(1);
    } else {
      low = code_detail::two_integers<T>(word, 0x4140), high = code_detail::two_integers<T>(word, 0x4342);
    }
  }

  // ---- x in the same order: a chunk of 64 columns -------------------------------------------------------------------
  // Lane t of a quad begins so much further than the first.
  __device__ static int x_begins(int t) { return (Form == code_form::q4_0 ? 4 : has_long_runs(Form) ? 16 : 8) * t; }
  __device__ __forceinline__ static uint4 x_of(const T* columns, int half, int t = 0) {
    columns += x_begins(t);
    if constexpr (Form == code_form::q4_0) {  // a byte has the codes of a column and of the one 16 further
      const uint2 low = *reinterpret_cast<const uint2*>(columns + 32 * half),
                  high = *reinterpret_cast<const uint2*>(columns + 32 * half + 16);
      return make_uint4(__byte_perm(low.x, high.x, 0x5410), __byte_perm(low.x, high.x, 0x7632),
                        __byte_perm(low.y, high.y, 0x5410), __byte_perm(low.y, high.y, 0x7632));
    } else if constexpr (has_long_runs(Form)) {
      return *reinterpret_cast<const uint4*>(columns + 8 * half);
    } else {
      return *reinterpret_cast<const uint4*>(columns + 32 * half);
    }
  }

  // ---- the table: all threads of a block write it, two to an entry --------------------------------------------------
  __device__ static void fill(std::uint32_t table, const float (&values)[16], int thread) {
    const int byte = thread / 2;
    const bool upper_first = Form != code_form::q4_0;
    const std::uint32_t pair =
        upper_first ? pack<T>(values[byte >> 4], values[byte & 15])
                    : pack<T>(encodings::q4_0_codes::value(byte & 15), encodings::q4_0_codes::value(byte >> 4));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      ptx::store_shared(table + byte * 256 + ((thread % 2 * 4 + j + byte) & 7) * 16,
                        make_uint4(pair, pair, pair, pair));
  }
};

}  // namespace graft::cuda
