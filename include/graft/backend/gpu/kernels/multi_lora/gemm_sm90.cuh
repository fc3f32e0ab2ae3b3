// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA GEMM, sm_90a: more than 64 tokens, each with its own adapter record or none, in one launch.
//
//   y = act(scale ⊙ (x Wᵀ + U Bᵀ) + shift) + residual      U = x Aᵀ, with A, B, scale and shift of each token's record
//
// The kernel is the GEMM of gemm/sm90.cuh with another branch loader. Rows of a sequence are contiguous, so a tile of
// 128 tokens seldom has more than two records. Their A are stacked in its tile of A, `Rank` rows in all, and their B
// concatenated along the rank; U is computed and read as for one adapter, with zeros where a token has another record.
// Tiles, warp roles, pipeline and reduction are those of gemm/sm90.cuh.
// Measured: H200, 4096 x 4096, bf16, 4096 rows, 8 LoRA r16 in segments of 512: 177 µs, 1.04 of cuBLASLt's bare layer
// (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/gemm/sm90.cuh>
#include <graft/backend/gpu/kernels/multi_lora/adapter_record.h>

namespace graft::gpu {

struct multi_lora_gemm_args {
  const adapter_record* records;
  const std::int64_t* of_row;
  const int* adapters_of_tile;  // [tiles of 128 tokens][max_tile_adapters]: record index; -1: none
  int m;
  bool epilogue_steps;  // some record has a scale or a shift
};

template <int TileN, int Rank> struct multi_lora_branch_loader {
  static constexpr int most = Rank / 16;
  static constexpr bool rotates = false;  // no rotation in the epilogue
  const multi_lora_gemm_args& rows;
  std::uint32_t branch_offsets;  // shared address: per 16 columns of U their offset in B, and their record
  static constexpr std::uint32_t no_branch = ~0U;  // sentinel for tiles without a low-rank branch

  struct loads {
    const char *a[most], *b[most];
    int rank[most], total;

    __device__ std::uint32_t a_bytes() const { return static_cast<std::uint32_t>(total) * 128; }
    __device__ void load_a(std::uint32_t to, int k, std::uint32_t bar) const {
#pragma unroll
      for (int i = 0; i < most; ++i) {
        const auto bytes = static_cast<std::uint32_t>(rank[i]) * 128;
        if (bytes > 0) ptx::load_bulk(to, a[i] + static_cast<long long>(k) * bytes, bytes, bar);
        to += bytes;
      }
    }
    __device__ std::uint32_t b_bytes() const { return static_cast<std::uint32_t>(total) * 2 * TileN; }
    __device__ void load_b(std::uint32_t to, int, int n_tile, std::uint32_t, std::uint32_t bar) const {
#pragma unroll
      for (int i = 0; i < most; ++i) {
        const auto bytes = static_cast<std::uint32_t>(rank[i]) * 2 * TileN;
        if (bytes > 0) ptx::load_bulk(to, b[i] + static_cast<long long>(n_tile) * bytes, bytes, bar);
        to += bytes;
      }
    }
  };
  __device__ int adapter(int m_block, int i) const {
    return __ldg(rows.adapters_of_tile + m_block * max_tile_adapters + i);
  }
  // Lists the tile's records that have a low-rank branch.
  __device__ loads of(const gemm_args&, int m_block) const {
    loads all{};
    for (int i = 0; i < max_tile_adapters; ++i) {
      const int p = adapter(m_block, i);
      const int rank = p < 0 ? 0 : static_cast<int>(rows.records[p].rank);
      if (rank == 0) continue;
      bool put = false;
#pragma unroll
      for (int k = 0; k < most; ++k)  // compile-time indices keep the list in registers
        if (!put && all.rank[k] == 0) {
          all.a[k] = static_cast<const char*>(rows.records[p].a_tiles);
          all.b[k] = static_cast<const char*>(rows.records[p].b_tiles);
          all.rank[k] = rank, put = true;
        }
      all.total += rank;
    }
    return all;
  }

  __device__ std::uint32_t branch_offset_at(int chunk) const {
    return branch_offsets + 8 * static_cast<std::uint32_t>(chunk);
  }
  __device__ void set_branches(int m_block) const {
    int chunk = 0;
    for (int i = 0; i < max_tile_adapters; ++i) {
      const int p = adapter(m_block, i);
      const int rank = p < 0 ? 0 : static_cast<int>(rows.records[p].rank);
      const auto first = static_cast<std::uint32_t>(chunk) * 32 * TileN;
      for (int k = 0; k < rank / 16; ++k, ++chunk) {
        ptx::store_shared(branch_offset_at(chunk), first + 32 * k | static_cast<std::uint32_t>(rank) << 17U);
        ptx::store_shared(branch_offset_at(chunk) + 4, static_cast<std::uint32_t>(p));
      }
    }
    // Where the tile's ranks do not fill Rank, zeros of U are multiplied with the first columns of B a second time:
    // other memory there, for example a residual, may not hold finite numbers.
    for (const std::uint32_t again = chunk > 0 ? branch_offset(0) : no_branch; chunk < most; ++chunk) {
      ptx::store_shared(branch_offset_at(chunk), again);
      ptx::store_shared(branch_offset_at(chunk) + 4, static_cast<std::uint32_t>(-1));
    }
  }
  __device__ bool has(int row, int column) const {
    const auto p = static_cast<int>(ptx::load_shared(branch_offset_at(column / 16) + 4));
    return p >= 0 && p == __ldg(reinterpret_cast<const int*>(rows.of_row + row));
  }

  __device__ std::uint32_t branch_offset(int chunk) const { return ptx::load_shared(branch_offset_at(chunk)); }
  __device__ bool has_branch(std::uint32_t first) const { return first != no_branch; }
  __device__ std::uint64_t b_columns(std::uint32_t at, int, std::uint32_t branch_offset) const {
    return tile_descriptor(at + (branch_offset & 0xFFFFU), branch_offset >> 16U);
  }
  template <int N> __device__ void finish(float (&acc)[N], const gemm_consumer& c, const tile_coord& at) const {
    if (!rows.epilogue_steps) return;
    const int column = at.n_tile * TileN + c.lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = at.m_block * 128 + c.group * 64 + c.warp * 16 + c.lane / 4 + 8 * half;
      if (token >= rows.m) continue;
      const adapter_record& r = rows.records[rows.of_row[token]];
      const float *const scale = r.scale, *const shift = r.shift;
      if (scale != nullptr)
#pragma unroll
        for (int j = 0; j < TileN / 8; ++j) {
          const float2 v = __ldg(reinterpret_cast<const float2*>(scale + column + 8 * j));
          acc[4 * j + 2 * half] *= v.x, acc[4 * j + 2 * half + 1] *= v.y;
        }
      if (shift != nullptr)
#pragma unroll
        for (int j = 0; j < TileN / 8; ++j) {
          const float2 v = __ldg(reinterpret_cast<const float2*>(shift + column + 8 * j));
          acc[4 * j + 2 * half] += v.x, acc[4 * j + 2 * half + 1] += v.y;
        }
    }
  }
};

template <class T, int TileN, int Rank>
__global__ void __launch_bounds__(384, 1)
    multi_lora_gemm_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g,
                           const __grid_constant__ multi_lora_gemm_args rows) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  using shape = gemm_shape<TileN, Rank>;
  static_assert(16 * shape::stages + 24 <= 128);  // barriers use half of their 256 bytes
  const std::uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  run_tiles<T, TileN, Rank, false, false>(maps, g, base, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                                          multi_lora_branch_loader<TileN, Rank>{rows, base + shape::barriers + 128});
#endif
}

}  // namespace graft::gpu
