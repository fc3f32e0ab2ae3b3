// SPDX-License-Identifier: Apache-2.0
// What passes through the shared memory of stream_codes: a ring of stages with 128 bytes of codes of 64 rows, or with tiles
// of A; the scales of each stage, whatever they are stored as; and a table of 256 pairs of numbers for codes of four bits,
// which every lane has for itself. Four warps feed it. A warpgroup has slots of its own.
#pragma once
#include <graft/backend/cuda/code_choice.h>
#include <graft/backend/cuda/codes.cuh>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>

namespace graft::cuda {

struct code_args {
  coded from;
  const void* x;
  void* y;
  const void* residual;
  adapter_slot slot;
  activation act;
  int m, n, k;
  int steps, own_steps, part_steps;  // of 64 columns: all, those of a part, and those with the empty ones behind them
  int tiles, stages;
  bool four_together;  // the scales of a stage lie side by side: blocks of 64, four of them aligned
  std::uint32_t x_at, ring_at, scales_at, inbox_at, s_at, barriers_at;  // in shared memory
};

// The scales of four steps from an element on, wherever they lie; zero beyond the last step.
inline __device__ __noinline__ float4 scales_of_steps(const coded& from, long long first, int steps) {
  const auto one = [&](int u) { return u < steps ? from.scale((first + u * 64) >> from.shift) : 0.0F; };
  return make_float4(one(0), one(1), one(2), one(3));
}
// A stage of codes: a tile of 64 rows, and which of its stages.
struct code_place {
  int tile, stage;
};

template <class T, bool FourBits, int Tokens, int Splits, int Groups> struct code_ring {
  static constexpr int parts = Splits * Groups;
  static constexpr int per_stage = FourBits ? 4 : 2;  // steps of 64 columns in 128 bytes of a row
  static constexpr int consumers = Groups * 128, feeders = 128, threads = consumers + feeders;
  static constexpr int turns = 4 / Groups;  // feeding warps that take turns with a warpgroup's stages
  static constexpr std::uint32_t stage = 64 * 128, unit = Tokens / 8 * 512;  // unit: 16 rows, as sums
  static constexpr int own_units = 4 / Splits;                               // of a tile, that a block finishes

  const CUtensorMap& map;
  const code_args& g;
  std::uint32_t base;  // the block's own number in the cluster, in the highest byte
  int rank_in_cluster, first_tile, tile_step;
  int slots, side, per_tile, all;  // of a warpgroup: places for stages, stages of A, of a tile, and of everything

  __device__ code_ring(const CUtensorMap& codes, const code_args& with, std::uint32_t begins)
      : map(codes),
        g(with),
        base(begins),
        rank_in_cluster(static_cast<int>(blockIdx.x)),
        first_tile(static_cast<int>(blockIdx.y)),
        tile_step(static_cast<int>(gridDim.y)) {
    slots = g.stages / Groups, side = g.slot.rank == 0 ? 0 : g.part_steps / side_steps(),
    per_tile = g.part_steps / per_stage;
    all = side + (first_tile < g.tiles ? (g.tiles - first_tile - 1) / tile_step + 1 : 0) * per_tile;
  }
  __device__ std::uint32_t table() const { return base + static_cast<std::uint32_t>(code_table_at); }
  __device__ std::uint32_t full(int q) const { return base + g.barriers_at + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(g.stages + q); }
  __device__ std::uint32_t received(int slot) const { return full(2 * g.stages + slot); }
  __device__ std::uint32_t at(int q) const { return base + g.ring_at + q * stage; }
  __device__ std::uint32_t scales_at(int q) const { return base + g.scales_at + q * 1024; }
  __device__ int side_steps() const { return 64 / g.slot.rank; }  // of A, in a stage
  __device__ int first_step(int group) const { return (rank_in_cluster * Groups + group) * g.own_steps; }

  // Where a warpgroup, or who feeds it, is in its slots.
  struct turn {
    int slot;
    std::uint32_t phase;
  };
  template <int Steps> __device__ void advance(turn& t) const {
    t.slot += Steps;
    if (t.slot >= slots) t.slot -= slots, t.phase ^= 1;
  }
  template <int Steps> __device__ void advance(code_place& p) const {
    p.stage += Steps;
    while (p.stage >= per_tile) p.stage -= per_tile, p.tile += tile_step;
  }

  // Whoever requests fills the ring while the others write the table.
  __device__ void start() const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= consumers) {
      if (i == consumers) {
        for (int b = 0; b < 2 * g.stages + 2; ++b)
          ptx::barrier_init(full(b), b < g.stages ? (FourBits ? 2 : 1) : b < 2 * g.stages ? 4 : 1);
        ptx::barrier_init_fence();
        for (int b = 0; b < 2; ++b) ptx::barrier_expect(received(b), parts * own_units * unit);
      }
      ptx::named_barrier(6, feeders);
      if (i % 32 == 0) {
        code_place p{first_tile, 0};
        for (int k = 0; k < slots && k < all; ++k) {
          const bool mine = k % turns == first_fed();
          if (k < side) {
            if (mine) request_side(k, k);
            continue;
          }
          if (mine) request(p, k);
          advance<1>(p);
        }
      }
      __syncwarp();
    } else if constexpr (FourBits) {
      for (int word = i; word < 256 * 32; word += consumers) {
        const int byte = word / 32;
        ptx::store_shared(table() + byte * 256 + word % 32 * 4,
                          pack<T>(g.from.table[byte >> 4], g.from.table[byte & 15]));
      }
    }
    ptx::cluster_sync();
    ptx::let_next_kernel_start();
  }

  // ---- four warps: each requests codes and A for a warpgroup, and makes the scales --------------------------------------
  __device__ int feeder() const { return (static_cast<int>(threadIdx.x) - consumers) / 32; }
  __device__ int fed_group() const { return feeder() % Groups; }
  __device__ int first_fed() const { return feeder() / Groups; }
  __device__ void request_side(int i, int slot) const {
    const int group = fed_group(), q = slot * Groups + group;
    const int step = first_step(group) + i * side_steps(), left_over = g.steps - step;
    const int here = left_over < 0 ? 0 : left_over < side_steps() ? left_over : side_steps();
    const std::uint32_t bytes = here * g.slot.rank * 128;
    if (FourBits) ptx::barrier_arrive(full(q));  // in the place of the scales
    ptx::barrier_expect(full(q), bytes);
    if (bytes > 0)
      ptx::load_bytes(at(q),
                      static_cast<const char*>(g.slot.a_tiles) + static_cast<long long>(step) * g.slot.rank * 128,
                      bytes, full(q));
  }
  __device__ void request(const code_place& p, int slot) const {
    const int group = fed_group(), q = slot * Groups + group;
    ptx::barrier_expect(full(q), stage);
    // The map counts in pairs of bytes.
    ptx::load_tile(at(q), &map, (first_step(group) + p.stage * per_stage) * (64 / per_stage), p.tile * 64, full(q),
                   ptx::evict_first);
  }
  // Two rows a lane, four steps.
  __device__ void load_scales(float4 (&to)[2], const code_place& p) const {
    if (p.tile >= g.tiles) return;
    const int lane = threadIdx.x % 32, step0 = first_step(fed_group()) + p.stage * per_stage;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = p.tile * 64 + lane + 32 * h;
      to[h] = make_float4(0, 0, 0, 0);
      if (row >= g.n) continue;
      const long long first = row * g.from.pitch + step0 * 64LL;
      if (g.four_together && step0 + 3 < g.steps) {
        to[h] = g.from.four_scales(first >> 6);
        continue;
      }
      to[h] = scales_of_steps(g.from, first, g.steps - step0);
    }
  }
  __device__ void feed() const {
    constexpr int ahead = FourBits ? 3 : 1;  // stages whose scales are on their way
    const int lane = threadIdx.x % 32, group = fed_group();
    int i = first_fed();
    turn t{i, 0};
    const auto refills = [&] {
      if (i < slots) return false;
      ptx::barrier_wait(empty(t.slot * Groups + group), t.phase ^ 1);
      return lane == 0;
    };
    for (; i < side; i += turns, advance<turns>(t)) {
      if (refills()) request_side(i, t.slot);
      __syncwarp();
    }
    code_place next{first_tile, i - side}, far;
    advance<0>(next), far = next;
    float4 scales[ahead][2];
    if constexpr (FourBits)
#pragma unroll
      for (int a = 0; a < ahead; ++a) load_scales(scales[a], far), advance<turns>(far);
    while (i < all)
#pragma unroll
      for (int a = 0; a < ahead; ++a) {
        if (i >= all) break;
        if (refills()) request(next, t.slot);
        __syncwarp();
        if constexpr (FourBits) {
          const int q = t.slot * Groups + group;
#pragma unroll
          for (int h = 0; h < 2; ++h)
            ptx::store_shared(scales_at(q) + (lane + 32 * h) * 16, *reinterpret_cast<const uint4*>(&scales[a][h]));
          __syncwarp();
          if (lane == 0) ptx::barrier_arrive(full(q));
          load_scales(scales[a], far), advance<turns>(far);
        }
        i += turns, advance<turns>(t), advance<turns>(next);
      }
  }
};

}  // namespace graft::cuda
