// SPDX-License-Identifier: Apache-2.0
// Dequantization from shared memory into mma.sync A operands, in registers, for every quantized layout: a layout is a
// file with what it stores (stored_values.cuh), listed here. 4-bit values are looked up two at a time in a table of 256
// pairs with a copy per lane, so that an address is one byte permutation.
#pragma once
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/kernels/quantized/stored_bytes.cuh>
#include <graft/backend/gpu/kernels/quantized/stored_four_bit.cuh>
#include <graft/backend/gpu/kernels/quantized/stored_ggml.cuh>
#include <graft/backend/gpu/kernels/quantized/stored_q4_k.cuh>

namespace graft::gpu {

template <class T, quant_layout Form> struct dequantizer : stored_values<T, Form> {
  using stored = stored_values<T, Form>;
  using words = typename stored::words;
  using pairs = std::uint32_t[4];
  static constexpr bool has_table = has_pair_table(Form);
  std::uint32_t table;  // shared address of this lane's table

  __device__ explicit dequantizer(std::uint32_t at) : table(at) {}
  __device__ __forceinline__ void dequantize(pairs& to, const words& from) const {
    if constexpr (has_table) {
#pragma unroll
      for (int b = 0; b < 4; ++b) to[b] = ptx::load_shared_unordered(__byte_perm(from[0], table, 0x7604 | b << 4));
    } else {
#pragma unroll
      for (int w = 0; w < 2; ++w) stored::convert(from[w], to[2 * w], to[2 * w + 1]);
    }
  }
  // The pair table: all threads of a CTA write it, two per entry.
  __device__ static void fill(std::uint32_t table, const float (&values)[16], int thread) {
    const int byte = thread / 2;
    const std::uint32_t pair = stored::pair(values, byte);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      ptx::store_shared(table + byte * 256 + ((thread % 2 * 4 + j + byte) & 7) * 16,
                        make_uint4(pair, pair, pair, pair));
  }
};

}  // namespace graft::gpu
