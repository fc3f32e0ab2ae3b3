// SPDX-License-Identifier: Apache-2.0
// Codes in shared memory as pairs of numbers in the registers from which the tensor cores read them. A lane reads sixteen
// neighbouring codes of a row for every 64 columns: its share of four products. Codes of four bits are looked up two at a
// time in a table of 256 pairs, which every lane has for itself: the address of an entry is one instruction.
#pragma once
#include <cuda_fp8.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/core/dtype.h>

namespace graft::cuda {

using code_fragments = std::uint32_t[4][4];  // 64 columns of 16 rows

template <class T, bool FourBits> struct code_pairs {
  dtype codes;
  std::uint32_t table;

  // The lane's sixteen codes of a row.
  using words = std::uint32_t[FourBits ? 2 : 4];
  __device__ __forceinline__ void load(words& to, std::uint32_t row, int step, int lane) const {
    const int t = lane % 4, turn = lane / 4;
    if constexpr (FourBits) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(to[0]), "=r"(to[1])
                   : "r"(row + (((2 * step + t / 2) ^ turn) << 4) + t % 2 * 8));
    } else {
      const uint4 v = ptx::load_shared_uint4(row + (((4 * step + t) ^ turn) << 4));
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
  }
  __device__ __forceinline__ void decode(std::uint32_t (&pairs)[8], const words& from, int lane) const {
    if constexpr (FourBits) {
      const std::uint32_t mine = table + lane * 4;
#pragma unroll
      for (int b = 0; b < 8; ++b) pairs[b] = ptx::load_shared(__byte_perm(from[b / 4], mine, 0x7604 | b % 4 << 4));
    } else {
#pragma unroll
      for (int w = 0; w < 4; ++w) four_bytes(from[w], pairs[2 * w], pairs[2 * w + 1]);
    }
  }
  __device__ __forceinline__ void four_bytes(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) const {
    float v[4];
    if (codes == dtype::int8) {  // 2^23 + 128 + code has the code in its last places
#pragma unroll
      for (int b = 0; b < 4; ++b)
        v[b] = __uint_as_float(__byte_perm(word ^ 0x80808080U, 0x4B000000U, 0x7650 | b)) - 8388736.0F;
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto two = static_cast<__nv_fp8x2_storage_t>(word >> (16 * h));
        const float2 f = __half22float2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3));
        v[2 * h] = f.x, v[2 * h + 1] = f.y;
      }
    }
    low = pack<T>(v[0], v[1]), high = pack<T>(v[2], v[3]);
  }
  __device__ __forceinline__ void decode_rows(code_fragments& a, std::uint32_t tile, int step, int warp,
                                              int lane) const {
    const std::uint32_t row = tile + (warp * 16 + lane / 4) * 128;
    words of_upper, of_lower;
    load(of_upper, row, step, lane), load(of_lower, row + 8 * 128, step, lane);
    std::uint32_t upper[8], lower[8];
    decode(upper, of_upper, lane), decode(lower, of_lower, lane);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      a[s][0] = upper[2 * s], a[s][1] = lower[2 * s], a[s][2] = upper[2 * s + 1], a[s][3] = lower[2 * s + 1];
  }
};

}  // namespace graft::cuda
