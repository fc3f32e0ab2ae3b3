// SPDX-License-Identifier: Apache-2.0
// The gemm family in numbers: shared memory of a thread block, the order of the tiles, who owns which part of the inner
// axis in the cooperative side branch, and when that scheme may run.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <graft/backend/cuda/slot.h>

#include <cstdint>

namespace graft::cuda {

inline constexpr int shared_memory_limit = 227 * 1024;

template <int TileN, int Rank> struct gemm_shape {
  static constexpr std::uint32_t x = 128 * 128, w = TileN * 128, a = Rank * 128, stage = x + w + a;
  static constexpr std::uint32_t chunk = 64 * 128;  // 64 x 64 results of one warpgroup
  static constexpr std::uint32_t s_pitch = Rank * 2 + 16, s_bytes = Rank > 0 ? 128 * s_pitch : 0;
  // The ring gets what is left beside one chunk per warpgroup; what the ring cannot use gives further chunks.
  static constexpr std::uint32_t usable = shared_memory_limit - 1024 - 256;
  static constexpr int stages = (usable - s_bytes - 2 * chunk) / stage;
  static constexpr int chunks_left = (usable - s_bytes - stages * stage) / (2 * chunk);
  static constexpr int chunks = chunks_left < TileN / 64 ? chunks_left : TileN / 64;
  static constexpr int round = chunks == TileN / 64 ? chunks : 1;  // chunks written between two barriers
  // 128 x 64 of a residual, and how many of them a stage has room for.
  static constexpr std::uint32_t more = 128 * 128;
  static constexpr int more_in_stage = (x + w) / more;
  static_assert(round <= more_in_stage);
  static constexpr std::uint32_t out = stages * stage, s_at = out + 2 * chunks * chunk, barriers = s_at + s_bytes;
  static constexpr std::uint32_t bytes = barriers + 256 + 1024;
  static_assert(stages >= 2 && bytes <= shared_memory_limit);
};

struct gemm_maps {
  CUtensorMap x, w, y, s, before, residual;
};

struct tile_place {
  int m_block, n_tile;
};
struct k_slice {
  int start, from, to;  // first step of the tile, and the steps, counted from it, that also make S
};

struct gemm_args {
  int m, n, k, tile_n;
  int group;   // rows of tiles that are walked together, so that x and W meet in the cache
  int owners;  // tiles of a row that make S together: a multiple of 4
  int rank, extra;
  activation act;
  adapter_slot slot;
  const void* residual;
  float* partial;           // [rows of 128][owners][128][rank]
  void* s;                  // [tokens][rank]
  std::uint32_t* counters;  // [rows of 128][4], zero between launches
  bool stores_before;       // the sum before scale and shift is wanted as well
  int watchers;             // thread blocks beside the tiles that wait for every row of S

  // Two blocks of 128 tokens make a row of tiles.
  __host__ __device__ int m_pairs() const { return (m + 255) / 256; }
  // Bytes of a row of the extension: S and B are cut into slabs of at most 64 columns.
  __host__ __device__ int side_pitch() const { return rank < 64 ? rank * 2 : 128; }
  __host__ __device__ int n_tiles() const { return (n + tile_n - 1) / tile_n; }
  // Rows first inside a group, then columns.
  __host__ __device__ tile_place place(int t, int rank_in_pair) const {
    const int per_group = group * n_tiles(), which = t / per_group, rest = t % per_group;
    const int left = m_pairs() - which * group, rows = left < group ? left : group;
    return {(which * group + rest % rows) * 2 + rank_in_pair, rest / rows};
  }
  // Even owners begin at the front, odd ones in the middle, so that all of S is known half way through the tile.
  __host__ __device__ k_slice slice(int owner, int k_steps) const {
    if (owners == 0) return {0, 0, 0};
    const int half = k_steps / 2, start = owner % 2 == 0 ? 0 : half, length = owner % 2 == 0 ? half : k_steps - half;
    const int part = owner / 2, parts = owners / 2;
    return {start, length * part / parts, length * (part + 1) / parts};
  }
};

// A thread that multiplies, and how far it is.
struct gemm_consumer {
  int group, thread, warp, lane;  // group 0 or 1; thread, warp and lane inside it
  int q = 0, step = 0, before = -1;
  std::uint32_t phase = 0, s_phase = 0;
};

}  // namespace graft::cuda
