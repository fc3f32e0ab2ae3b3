// SPDX-License-Identifier: Apache-2.0
// Layout and arguments of the sm90 GEMM kernel: shared memory of a CTA, tile order, kernel arguments, and
// which owner computes which slice of K of the shrink U = x Aᵀ [tokens, rank].
//
// Shared memory: stages of (x | W | A), output chunks of both warpgroups, U, barriers. Element type: 16 bits.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <graft/backend/gpu/tile/adapter_args.h>
#include <graft/backend/gpu/tile/tile_order.h>

#include <cstdint>

namespace graft::gpu {

template <int TileN, int Rank> struct gemm_shape {
  static constexpr std::uint32_t x = 128 * 128, w = TileN * 128, a = Rank * 128, stage = x + w + a;
  static constexpr std::uint32_t chunk = 64 * 128;  // bytes of 64 x 64 results of one warpgroup
  static constexpr std::uint32_t u_pitch = Rank * 2 + 16, u_bytes = Rank > 0 ? 128 * u_pitch : 0;
  // One output chunk per warpgroup is reserved, the pipeline gets as many stages as fit, and the rest becomes chunks.
  static constexpr std::uint32_t usable = shared_memory_limit - 1024 - 256;
  static constexpr int stages = (usable - u_bytes - 2 * chunk) / stage;
  static constexpr int chunks_left = (usable - u_bytes - stages * stage) / (2 * chunk);
  static constexpr int chunks = chunks_left < TileN / 64 ? chunks_left : TileN / 64;
  static constexpr int round = chunks == TileN / 64 ? chunks : 1;  // chunks written between two barriers
  // Bytes of 128 x 64 of the residual, and how many of these fit into a stage.
  static constexpr std::uint32_t residual_chunk = 128 * 128;
  static constexpr int residual_chunks_per_stage = (x + w) / residual_chunk;
  static_assert(round <= residual_chunks_per_stage);
  static constexpr std::uint32_t out = stages * stage, u_at = out + 2 * chunks * chunk, barriers = u_at + u_bytes;
  static constexpr std::uint32_t bytes = barriers + 256 + 1024;
  static_assert(stages >= 2 && bytes <= shared_memory_limit);
};

struct gemm_maps {
  CUtensorMap x, w, y, u, before, residual;
};

// A tile covers 128 rows from m_block * 128 on and TileN columns from n_tile * TileN on.
struct tile_coord {
  int m_block, n_tile;
};
// The k steps in which an owner also computes U.
struct k_slice {
  int start, from, to;  // the tile's first k step; steps [from, to), counted from it, also multiply with A
};

struct gemm_args {
  int m, n, k, tile_n;
  int group;               // rows of tiles per group of the tile order, for reuse of x and W in L2
  int owners;              // tiles of a row that compute U cooperatively: a multiple of 4; 0: U is not computed here
  int rank, branch_steps;  // padded rank; k steps on a U from an earlier launch
  activation act;
  adapter_args adapter;
  const void* residual;
  float* partial;            // partial sums of U: [blocks of 128 tokens][owners][128][rank]
  void* u;                   // [tokens][rank]
  std::uint32_t* counters;   // [blocks of 128 tokens][4]: slices stored, reduced, users done; zero between launches
  bool stores_pre_epilogue;  // also store the accumulators before scale and shift
  int waiting_wgrad_blocks;  // CTAs of fused wgrads that wait for every row of U

  // Rows of tiles: each has two blocks of 128 tokens, one per block of the cluster.
  __host__ __device__ int m_pairs() const { return (m + 255) / 256; }
  // Bytes of a row of U and B in a stage; ranks above 64 are cut into slabs of 64 columns.
  __host__ __device__ int branch_pitch() const { return rank < 64 ? rank * 2 : 128; }
  __host__ __device__ int n_tiles() const { return (n + tile_n - 1) / tile_n; }
  __host__ __device__ tile_coord tile_at(int t, int rank_in_pair) const {
    const grouped_raster::tile_coord at = grouped_raster{m_pairs(), n_tiles(), group}.at(t);
    return {at.row * 2 + rank_in_pair, at.column};
  }
  // Even owners start their tile at the first k step and odd ones in the middle, so that all slices are done, and U is
  // complete, half way through the tile.
  __host__ __device__ k_slice slice(int owner, int k_steps) const {
    if (owners == 0) return {0, 0, 0};
    const int half = k_steps / 2, start = owner % 2 == 0 ? 0 : half, length = owner % 2 == 0 ? half : k_steps - half;
    const int part = owner / 2, parts = owners / 2;
    return {start, length * part / parts, length * (part + 1) / parts};
  }
};

}  // namespace graft::gpu
