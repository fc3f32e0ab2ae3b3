// SPDX-License-Identifier: Apache-2.0
// Where a tile of gemm finds its side branch: one for all tokens. Batches whose rows have their own put another type in its
// place (gemm_mixed.cuh), with the same members.
#pragma once
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

template <int TileN, int Rank> struct one_side {
  static constexpr bool turns = false;  // no rotation behind the tile (gemm_turn.cuh)
  // What the producer brings for a block of 128 tokens; the two blocks of a pair bring half of B each, for both.
  struct loads {
    const gemm_args& g;

    __device__ std::uint32_t a_bytes() const { return Rank * 128; }
    __device__ void load_a(std::uint32_t to, int k, std::uint32_t bar) const {
      ptx::load_bytes(to, static_cast<const char*>(g.slot.a_tiles) + static_cast<long long>(k) * a_bytes(), a_bytes(),
                      bar);
    }
    __device__ int pitch() const { return Rank > 0 ? 2 * Rank : g.side_pitch(); }
    __device__ std::uint32_t b_bytes() const { return TileN * pitch(); }
    __device__ void load_b(std::uint32_t to, int slab, int n_tile, std::uint32_t half, std::uint32_t bar) const {
      const long long row = n_tile * TileN + half * (TileN / 2);
      ptx::load_bytes_multicast(to + half * (TileN / 2) * pitch(),
                                static_cast<const char*>(g.slot.b_tiles) + (slab * padded_rows(g.n) + row) * pitch(),
                                TileN / 2 * pitch(), bar, 3);
    }
  };
  __device__ loads of(const gemm_args& g, int) const { return {g}; }

  // Helpers: what is noted of a block for the threads that multiply, and whether a token has this part of S.
  __device__ void note(int) const {}
  __device__ bool has(int, int) const { return true; }

  // Those threads: whether a tile has a side branch, where sixteen columns of B lie in a stage, and what is left to do for
  // each token.
  __device__ std::uint32_t noted(int) const { return 0; }
  __device__ bool brought(std::uint32_t) const { return true; }
  __device__ std::uint64_t b_columns(std::uint32_t at, int chunk, std::uint32_t) const {
    return tile_descriptor(at, 2 * Rank) + 2 * chunk;
  }
  template <int N> __device__ void finish(float (&)[N], const gemm_consumer&, const tile_place&) const {}
};

}  // namespace graft::cuda
