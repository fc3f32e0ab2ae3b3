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

template <class T, bool FourBits, int Tokens, int Groups> struct code_ring {
  static constexpr int parts = code_splits * Groups;
  static constexpr int per_stage = FourBits ? 4 : 2;  // steps of 64 columns in 128 bytes of a row
  static constexpr int consumers = Groups * 128, feeders = 128, threads = consumers + feeders;
  static constexpr int turns = 4 / Groups;  // feeding warps that take turns with a warpgroup's stages
  static constexpr std::uint32_t stage = 64 * 128, unit = Tokens / 8 * 512;  // unit: 16 rows, as sums

  const CUtensorMap& map;
  const code_args& g;
  std::uint32_t base;  // the block's own number in the cluster, in the highest byte
  int rank_in_cluster, first_tile, tile_step;

  __device__ std::uint32_t table() const { return base + static_cast<std::uint32_t>(code_table_at); }
  __device__ std::uint32_t full(int q) const { return base + g.barriers_at + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(g.stages + q); }
  __device__ std::uint32_t received(int slot) const { return full(2 * g.stages + slot); }
  __device__ std::uint32_t at(int q) const { return base + g.ring_at + q * stage; }
  __device__ std::uint32_t scales_at(int q) const { return base + g.scales_at + q * 1024; }
  __device__ int slots() const { return g.stages / Groups; }  // of a warpgroup
  __device__ int slot_of(int group, int i) const { return i % slots() * Groups + group; }
  __device__ std::uint32_t phase_of(int i) const { return i / slots() % 2; }
  __device__ int side_steps() const { return 64 / g.slot.rank; }  // of A, in a stage
  __device__ int side_stages() const { return g.slot.rank == 0 ? 0 : g.part_steps / side_steps(); }
  __device__ int tile_stages() const { return g.part_steps / per_stage; }
  __device__ int own_tiles() const { return first_tile < g.tiles ? (g.tiles - first_tile - 1) / tile_step + 1 : 0; }
  __device__ int own_stages() const { return side_stages() + own_tiles() * tile_stages(); }  // of a warpgroup
  __device__ int first_step(int group) const { return (rank_in_cluster * Groups + group) * g.own_steps; }

  // Whoever requests fills the ring while the others write the table.
  __device__ void start() const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= consumers) {
      if (i == consumers) {
        for (int b = 0; b < 2 * g.stages + 2; ++b)
          ptx::barrier_init(full(b), b < g.stages ? (FourBits ? 2 : 1) : b < 2 * g.stages ? 4 : 1);
        ptx::barrier_init_fence();
        for (int b = 0; b < 2; ++b) ptx::barrier_expect(received(b), parts * unit);
      }
      ptx::named_barrier(6, feeders);
      const int all = own_stages();
      if (i % 32 == 0)
        for (int k = first_fed(); k < slots() && k < all; k += turns) request(k);
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
  __device__ void request(int i) const {
    const int group = fed_group(), side = side_stages(), q = slot_of(group, i);
    if (i < side) {
      const int step = first_step(group) + i * side_steps(), left_over = g.steps - step;
      const int here = left_over < 0 ? 0 : left_over < side_steps() ? left_over : side_steps();
      const std::uint32_t bytes = here * g.slot.rank * 128;
      if (FourBits) ptx::barrier_arrive(full(q));  // in the place of the scales
      ptx::barrier_expect(full(q), bytes);
      if (bytes > 0)
        ptx::load_bytes(at(q),
                        static_cast<const char*>(g.slot.a_tiles) + static_cast<long long>(step) * g.slot.rank * 128,
                        bytes, full(q));
    } else {
      const int c = i - side, per_tile = tile_stages(), tile = first_tile + c / per_tile * tile_step;
      ptx::barrier_expect(full(q), stage);
      // The map counts in pairs of bytes.
      ptx::load_tile(at(q), &map, (first_step(group) + c % per_tile * per_stage) * (64 / per_stage), tile * 64, full(q),
                     ptx::evict_first);
    }
  }
  // Of stage i: two rows a lane, four steps.
  __device__ void load_scales(float4 (&to)[2], int i) const {
    const int c = i - side_stages(), per_tile = tile_stages(), lane = threadIdx.x % 32;
    if (c < 0 || i >= own_stages()) return;
    const int row0 = (first_tile + c / per_tile * tile_step) * 64;
    const int step0 = first_step(fed_group()) + c % per_tile * per_stage;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + lane + 32 * h;
      to[h] = make_float4(0, 0, 0, 0);
      if (row >= g.n) continue;
      const long long first = row * g.from.pitch + step0 * 64LL;
      if (g.four_together && step0 + 3 < g.steps) {
        to[h] = g.from.four_scales(first >> 6);
        continue;
      }
      const auto one = [&](int u) {
        return step0 + u < g.steps ? g.from.scale((first + u * 64) >> g.from.shift) : 0.0F;
      };
      to[h] = make_float4(one(0), one(1), one(2), one(3));
    }
  }
  __device__ void feed() const {
    const int lane = threadIdx.x % 32, side = side_stages(), all = own_stages();
    float4 now[2] = {}, next[2] = {};
    if constexpr (FourBits) load_scales(now, first_fed());
    for (int i = first_fed(); i < all; i += turns) {
      const int q = slot_of(fed_group(), i);
      if constexpr (FourBits) load_scales(next, i + turns);
      if (i >= slots()) {
        ptx::barrier_wait(empty(q), phase_of(i) ^ 1);
        if (lane == 0) request(i);
        __syncwarp();
      }
      if constexpr (!FourBits) continue;
      if (i >= side) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ptx::store_shared(scales_at(q) + (lane + 32 * h) * 16, *reinterpret_cast<const uint4*>(&now[h]));
        __syncwarp();
        if (lane == 0) ptx::barrier_arrive(full(q));
      }
      now[0] = next[0], now[1] = next[1];
    }
  }
};

}  // namespace graft::cuda
