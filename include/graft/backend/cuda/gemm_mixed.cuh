// SPDX-License-Identifier: Apache-2.0
// gemm for batches that mix adapters, sm_90a: many tokens, each with its own record or none, in one launch. Rows of one
// sequence lie side by side, so that a block of 128 tokens seldom has more than two records. Their A stand one below the
// other in its tile of A, Rank rows in all, and their B beside each other: S is made and read as for one adapter
// (gemm.cuh), with zeros where a token has another record. Factors and summands are those of each token's record.
#pragma once
#include <graft/backend/cuda/gemm.cuh>
#include <graft/backend/cuda/mixed_record.h>

namespace graft::cuda {

struct mixed_gemm_args {
  const mixed_record* records;
  const std::int64_t* of_row;
  const int* of_block;  // mixed_block_places for each 128 tokens; -1: none
  int m;
  bool posts;  // some record has a factor or a summand
};

template <int TileN, int Rank> struct mixed_sides {
  static constexpr int most = Rank / 16;
  static constexpr bool turns = false;  // no rotation behind the tile
  const mixed_gemm_args& rows;
  std::uint32_t notes;  // in shared memory: for each sixteen columns of S their place in B, and their record
  static constexpr std::uint32_t no_side = ~0U;  // noted where no token of a tile has a side branch

  struct loads {
    const char *a[most], *b[most];
    int rank[most], total;

    __device__ std::uint32_t a_bytes() const { return static_cast<std::uint32_t>(total) * 128; }
    __device__ void load_a(std::uint32_t to, int k, std::uint32_t bar) const {
#pragma unroll
      for (int i = 0; i < most; ++i) {
        const auto bytes = static_cast<std::uint32_t>(rank[i]) * 128;
        if (bytes > 0) ptx::load_bytes(to, a[i] + static_cast<long long>(k) * bytes, bytes, bar);
        to += bytes;
      }
    }
    __device__ std::uint32_t b_bytes() const { return static_cast<std::uint32_t>(total) * 2 * TileN; }
    __device__ void load_b(std::uint32_t to, int, int n_tile, std::uint32_t, std::uint32_t bar) const {
#pragma unroll
      for (int i = 0; i < most; ++i) {
        const auto bytes = static_cast<std::uint32_t>(rank[i]) * 2 * TileN;
        if (bytes > 0) ptx::load_bytes(to, b[i] + static_cast<long long>(n_tile) * bytes, bytes, bar);
        to += bytes;
      }
    }
  };
  __device__ int place(int m_block, int i) const { return __ldg(rows.of_block + m_block * mixed_block_places + i); }
  // Those with a side branch, one behind the other.
  __device__ loads of(const gemm_args&, int m_block) const {
    loads all{};
    for (int i = 0; i < mixed_block_places; ++i) {
      const int p = place(m_block, i);
      const int rank = p < 0 ? 0 : static_cast<int>(rows.records[p].rank);
      if (rank == 0) continue;
      bool put = false;
#pragma unroll
      for (int k = 0; k < most; ++k)  // no index that is only known at run time: the list stays in registers
        if (!put && all.rank[k] == 0) {
          all.a[k] = static_cast<const char*>(rows.records[p].a_tiles);
          all.b[k] = static_cast<const char*>(rows.records[p].b_tiles);
          all.rank[k] = rank, put = true;
        }
      all.total += rank;
    }
    return all;
  }

  __device__ std::uint32_t note_at(int chunk) const { return notes + 8 * static_cast<std::uint32_t>(chunk); }
  __device__ void note(int m_block) const {
    int chunk = 0;
    for (int i = 0; i < mixed_block_places; ++i) {
      const int p = place(m_block, i);
      const int rank = p < 0 ? 0 : static_cast<int>(rows.records[p].rank);
      const auto first = static_cast<std::uint32_t>(chunk) * 32 * TileN;
      for (int k = 0; k < rank / 16; ++k, ++chunk) {
        ptx::store_shared(note_at(chunk), first + 32 * k | static_cast<std::uint32_t>(rank) << 17U);
        ptx::store_shared(note_at(chunk) + 4, static_cast<std::uint32_t>(p));
      }
    }
    // Where the tile's ranks leave room, zeros of S meet the first columns of B once more: what else lies there may be no
    // numbers, a residual of other tokens for example.
    for (const std::uint32_t again = chunk > 0 ? noted(0) : no_side; chunk < most; ++chunk) {
      ptx::store_shared(note_at(chunk), again);
      ptx::store_shared(note_at(chunk) + 4, static_cast<std::uint32_t>(-1));
    }
  }
  __device__ bool has(int row, int column) const {
    const auto p = static_cast<int>(ptx::load_shared(note_at(column / 16) + 4));
    return p >= 0 && p == __ldg(reinterpret_cast<const int*>(rows.of_row + row));
  }

  __device__ std::uint32_t noted(int chunk) const { return ptx::load_shared(note_at(chunk)); }
  __device__ bool brought(std::uint32_t first) const { return first != no_side; }
  __device__ std::uint64_t b_columns(std::uint32_t at, int, std::uint32_t noted) const {
    return tile_descriptor(at + (noted & 0xFFFFU), noted >> 16U);
  }
  template <int N> __device__ void finish(float (&acc)[N], const gemm_consumer& c, const tile_place& at) const {
    if (!rows.posts) return;
    const int column = at.n_tile * TileN + c.lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = at.m_block * 128 + c.group * 64 + c.warp * 16 + c.lane / 4 + 8 * half;
      if (token >= rows.m) continue;
      const mixed_record& r = rows.records[rows.of_row[token]];
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
    gemm_mixed_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g,
                      const __grid_constant__ mixed_gemm_args rows) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  using shape = gemm_shape<TileN, Rank>;
  static_assert(16 * shape::stages + 24 <= 128);  // of the 256 bytes for barriers
  const std::uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  run_tiles<T, TileN, Rank, false, false>(maps, g, base, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                                          mixed_sides<TileN, Rank>{rows, base + shape::barriers + 128});
#endif
}

}  // namespace graft::cuda
