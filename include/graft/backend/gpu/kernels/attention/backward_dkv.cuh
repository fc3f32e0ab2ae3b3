// SPDX-License-Identifier: Apache-2.0
// Attention backward, first half, sm_90a (wgmma): gradients of keys and values, and dS for backward_dq.cuh.
//
//   P = exp(Q Kᵀ / √d - lse)   dP = dO Vᵀ   dS = P ⊙ (dP - D)   dV = Pᵀ dO   dK = dSᵀ Q / √d
//   Q, dO [rows, heads, d], K, V [rows, kv_heads, d], d <= 128; lse and D = delta = <dO, O> from row_statistics.cuh
//   dK and dV sum over all rows that attend to a key and all query heads that share it. With a soft cap (Capped) dS is
//   multiplied by its slope (softmax_rows.cuh). Sinks are in lse.
//
// Four products here and one in backward_dq.cuh; a second half that recomputed S and dP would need seven in all.
//
// Tile         128 keys of one KV head per cluster of two CTAs; a step is 64 rows of one query head. The two CTAs take
//              the steps alternately, and each begins every other query head. tile/tile_scheduler.cuh deals out the
//              tiles.
// Warp roles   Warpgroup 0: one warp loads by TMA. Warpgroups 1 and 2: 64 keys each, as rows of Sᵀ and dPᵀ.
// Pipeline     Two rings: K and V of two tiles, and steps of Q, dO and row statistics. Every consumer thread releases a
//              step one step later, when the products that read it are complete.
// Phases       Per step: Sᵀ, dPᵀ, P, dV += Pᵀ dO, dS, store dS (16 bits), dK += dSᵀ Q. P and dS stay in registers.
// Reduction    At the end of a tile CTA 0 adds the dK and CTA 1 the dV of both, exchanged by st.async; no atomics, so
//              the same call gives the same bits.
// Measured     H200, causal, 32 heads over 8 of 128, bf16, 2048 tokens: forward and backward 249 µs, 0.72 of cuDNN's
//              time; 3270 µs and 0.95 for 8192 (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/attention/key_blocks.cuh>
#include <graft/backend/gpu/kernels/attention/row_statistics.cuh>
#include <graft/backend/gpu/tile/exchange.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

namespace graft::gpu {

struct dkv_maps {
  CUtensorMap q, d_out, k, v, dk, dv;
};
struct dkv_args {
  int rows, heads, group;
  float scale;
  row_statistics statistics;
  ds_slab slab;
  score_cap cap;
};

template <class T, int Head, bool Capped> struct dkv_cta {
  using shape = dkv_shape<Head>;
  static constexpr int keys = shape::keys;

  const dkv_maps& maps;
  const dkv_args& g;
  std::uint32_t base;
  // [0], [1]: number of steps of the two tiles in flight. From [4] on, per stage: index of its dS tile; 8 x row block +
  // flags (1: all rows attend to the whole key tile; 2, 4: any row attends to its first, to its last 64 keys).
  int* stage_info;
  longest_first_scheduler scheduler;
  int rank, blocks;

  __device__ pipeline kv_ring() const { return {base + shape::barriers, 2}; }
  __device__ cluster_mailbox sums(int w) const { return {base + shape::barriers + 8 * (4 + w)}; }
  __device__ std::uint32_t ready() const { return base + shape::barriers + 6 * 8; }
  __device__ pipeline ring() const { return {base + shape::barriers + 7 * 8, shape::stages}; }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::stage; }
  __device__ std::uint32_t vectors(int i) const { return base + shape::vectors + i * shape::numbers; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) kv_ring().init(i, 1, 2), sums(i).init();
      ptx::barrier_init(ready(), 2);
      for (int i = 0; i < shape::stages; ++i)
        ring().init(i, 1, 256);  // every consumer thread reads lse and delta of the stage
      ptx::barrier_init_fence();
    }
    ptx::cluster_sync();
  }

  __device__ bool take(int round, int& tile, int& column) const {
    if (!scheduler.take(round, tile, column)) return false;
    tile += g.slab.tile;
    return true;
  }
  // Bit mask over 32 row blocks, one per lane: whether any of the block's rows attends to the tile.
  __device__ unsigned attending(int tile, int block, int4& key_bounds) const {
    key_bounds = block < blocks ? g.statistics.key_bounds[block] : make_int4(INT_MAX, 0, INT_MAX, 0);
    return __ballot_sync(~0U, key_bounds.x < (tile + 1) * keys && key_bounds.y > tile * keys);
  }
  __device__ void produce() const {
    const int lane = static_cast<int>(threadIdx.x);
    int tile, column;
    pipeline_state at = pipeline_state::producer();
    int4 key_bounds;
#pragma unroll 1
    for (int i = 0; take(i, tile, column); ++i) {
      int steps = 0;
#pragma unroll 1
      for (int b = 0; b < blocks; b += 32) steps += __popc(attending(tile, b + lane, key_bounds));
      if (lane == 0) {
        const int which = i & 1;
        kv_ring().producer_acquire({which, static_cast<std::uint32_t>(i >> 1 & 1) ^ 1});
        const int firsts = (g.group + 1 - rank) / 2;  // heads whose first step this CTA takes
        stage_info[which] = firsts * ((steps + 1) / 2) + (g.group - firsts) * (steps / 2);
        const std::uint32_t full = kv_ring().producer_commit(which, 2 * shape::tile);
#pragma unroll 1
        for (int w = 0; w < 4; ++w)
          ptx::load_box(base + which * 2 * shape::tile + w * shape::rows_bytes, w < 2 ? &maps.k : &maps.v,
                        tile * keys + w % 2 * 64, (g.slab.column + column) * shape::chunks, full);
      }
#pragma unroll 1
      for (int in_group = 0; in_group < g.group; ++in_group) {
        const int head = (g.slab.column + column) * g.group + in_group;
        int parity = (rank + in_group) & 1;  // 0 where this CTA takes the next step
#pragma unroll 1
        for (int b = 0; b < blocks; b += 32) {
          unsigned wanted = attending(tile, b + lane, key_bounds);
          const unsigned whole = __ballot_sync(~0U, key_bounds.z <= tile * keys && key_bounds.w >= (tile + 1) * keys);
          const unsigned upper = __ballot_sync(~0U, key_bounds.y > tile * keys + 64),
                         lower = __ballot_sync(~0U, key_bounds.x < tile * keys + 64);
#pragma unroll 1
          for (; wanted != 0; wanted &= wanted - 1, parity ^= 1) {
            if (parity != 0) continue;
            const int bit = __ffs(static_cast<int>(wanted)) - 1, block = b + bit;
            if ((whole >> bit & 1) == 0) ptx::prefetch(g.statistics.ranges + block * 64 + 2 * lane);  // for the mask
            if (lane == 0) {
              ring().producer_acquire(at);
              stage_info[4 + 2 * at.stage] =
                  ((column * g.group + in_group) * blocks + block) * g.slab.tiles + tile - g.slab.tile;
              stage_info[5 + 2 * at.stage] = 8 * block + static_cast<int>(whole >> bit & 1) +
                                             static_cast<int>(lower >> bit & 1) * 2 +
                                             static_cast<int>(upper >> bit & 1) * 4;
              const std::uint32_t full = ring().producer_commit(at.stage, shape::stage + shape::numbers);
              ptx::load_box(stage(at.stage), &maps.q, block * 64, head * shape::chunks, full);
              ptx::load_box(stage(at.stage) + shape::rows_bytes, &maps.d_out, block * 64, head * shape::chunks, full);
              ptx::load_bulk(vectors(at.stage),
                             g.statistics.numbers + (static_cast<long long>(head) * blocks + block) * 128,
                             shape::numbers, full);
            }
            at.advance(shape::stages);
          }
        }
      }
    }
  }

  // Masks scores of rows that do not attend to the thread's two keys; in Sᵀ rows are columns.
  __device__ __forceinline__ void mask(float (&s)[32], int key, int row) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int4 look = *reinterpret_cast<const int4*>(g.statistics.ranges + row + j * 8);  // ranges of two rows
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = key + 8 * h;
        if (k < look.x || k >= look.y) s[4 * j + 2 * h] = -INFINITY;
        if (k < look.z || k >= look.w) s[4 * j + 2 * h + 1] = -INFINITY;
      }
    }
  }
  // Stores a warp's dS, 16 keys x 64 rows. Streaming stores leave the L2 cache to the rows of Q and dO.
  __device__ __forceinline__ void store_ds(const std::uint32_t (&ds)[4][4], int tile, int at) const {
    uint4* const to = reinterpret_cast<uint4*>(g.slab.ds + static_cast<long long>(tile) * ds_tile) + at;
#pragma unroll
    for (int e = 0; e < 4; ++e) __stcs(to + e * 32, make_uint4(ds[e][0], ds[e][1], ds[e][2], ds[e][3]));
  }
  __device__ void consume() const {
    const int group = warpgroup() - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32), thread = static_cast<int>(threadIdx.x % 128);
    const bool leader = thread == 0;
    const int new_key = group * 64 + warp * 16 + lane / 4, own_column = lane % 4 * 2;
    const int own_score = (group * 4 + warp) * 128 + lane;
    const float c = score_unit<Capped>(g.scale, g.cap) * log2_e;
    constexpr std::uint32_t next_rows = 64 * shape::pitch;
    int tile, column;
    wgmma_pipeline_state at;
    float s[32], dp[32], dk[Head / 2], dv[Head / 2];
    std::uint32_t p[4][4], ds[4][4];
#pragma unroll 1
    for (int i = 0; take(i, tile, column); ++i) {
      const int which = i & 1;
      const std::uint32_t k = base + which * 2 * shape::tile + group * shape::rows_bytes, v = k + shape::tile;
      kv_ring().consumer_wait({which, static_cast<std::uint32_t>(i >> 1 & 1)});
      const int steps = stage_info[which];
      at.in_flight = -1;
      bool any = false;
#pragma unroll 1
      for (int n = 0; n < steps; ++n) {
        const std::uint32_t q = stage(at.stage), d_out = q + shape::rows_bytes,
                            numbers = vectors(at.stage) + own_column * 4;
        ring().consumer_wait(at);
        const int info = stage_info[5 + 2 * at.stage];
        if ((info >> (1 + group) & 1) == 0) {  // no row of the block attends to these 64 keys
          if (at.in_flight >= 0) ring().consumer_release(at.in_flight, products_done<0>());
          at.in_flight = -1;
          ring().consumer_release(at.stage, nothing_read());
          at.advance(shape::stages);
          continue;
        }
        mma_along_head<T, Head, 64>(s, k, next_rows, q, next_rows);  // Sᵀ
        const reads_done done = products_done<1>();  // the previous step's dV and dK: P, dS and its stage are free
        if (at.in_flight >= 0) ring().consumer_release(at.in_flight, done);
        mma_along_head<T, Head, 64>(dp, v, next_rows, d_out, next_rows);  // dPᵀ
        wgmma_wait<1>(), pin(s);
        if constexpr (Capped) cap_scores(s, g.cap);
        if ((info & 1) == 0) mask(s, tile * keys + new_key, info / 8 * 64 + own_column);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 sum = ptx::load_shared_float2(numbers + j * 32);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[4 * j + e] = exp2_approx(fmaf(s[4 * j + e], c, e % 2 == 0 ? -sum.x : -sum.y));
        }
        pack_rows<T>(p, s);
        mma_over_rows<T, Head>(dv, p, d_out, next_rows, any);
        wgmma_wait<1>(), pin(dp);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 d = ptx::load_shared_float2(numbers + 256 + j * 32);
          const float2 lse = Capped ? ptx::load_shared_float2(numbers + j * 32) : make_float2(0, 0);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float probability = s[4 * j + e];
            s[4 * j + e] *= dp[4 * j + e] - (e % 2 == 0 ? d.x : d.y);
            if constexpr (Capped) s[4 * j + e] *= cap_slope(probability, e % 2 == 0 ? lse.x : lse.y, g.cap);
          }
        }
        pack_rows<T>(ds, s);
        store_ds(ds, stage_info[4 + 2 * at.stage], own_score);
        mma_over_rows<T, Head>(dk, ds, q, next_rows, any);
        at.in_flight = at.stage, any = true;
        at.advance(shape::stages);
      }
      const reads_done done = products_done<0>();
      pin(dk), pin(dv);
      if (!any) {
#pragma unroll
        for (int e = 0; e < Head / 2; ++e) dk[e] = dv[e] = 0;
      }
      if (at.in_flight >= 0) ring().consumer_release(at.in_flight, done);
      // When both warpgroups of the other CTA have read K and V of this tile, this CTA's sums may overwrite them there.
      ptx::named_barrier(1 + group, 128);
      if (leader) ptx::barrier_arrive_cluster(ready(), rank ^ 1), sums(group).expect(shape::tile);
      ptx::barrier_wait(ready(), i & 1);
      const std::uint32_t box = base + which * 2 * shape::tile + group * shape::tile, mine = box + thread * 16;
#pragma unroll
      for (int e = 0; e < Head / 8; ++e) {
        const float4 v4 = make_float4(dv[4 * e], dv[4 * e + 1], dv[4 * e + 2], dv[4 * e + 3]),
                     k4 = make_float4(dk[4 * e], dk[4 * e + 1], dk[4 * e + 2], dk[4 * e + 3]);
        sums(group).send(mine + e * 2048, rank ^ 1, rank == 0 ? v4 : k4);
      }
      sums(group).wait(i & 1);
#pragma unroll
      for (int e = 0; e < Head / 8; ++e) {
        const float4 other = ptx::load_shared_float4(mine + e * 2048);
        const float add[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int z = 0; z < 4; ++z) dk[4 * e + z] = add[z] + (rank == 0 ? dk[4 * e + z] : dv[4 * e + z]);
      }
      const float factor = rank == 0 ? g.scale : 1;
      store_rows<T, Head>(rank == 0 ? &maps.dk : &maps.dv, dk, factor, factor, box, tile * keys + group * 64,
                          g.slab.column + column, 1 + group);
      if (leader) kv_ring().consumer_release(which, stores_done());
    }
    if (leader) ptx::wait_for_stores();
  }
};

template <class T, int Head, bool Capped = false>
__global__ void __launch_bounds__(384, 1)
    dkv_kernel(const __grid_constant__ dkv_maps maps, const __grid_constant__ dkv_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = dkv_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const int blocks = 2 * ((g.rows + attention_tile_rows - 1) / attention_tile_rows);
  const longest_first_scheduler scheduler{g.slab.tiles, g.slab.columns, static_cast<int>(gridDim.x) / 2,
                                          static_cast<int>(blockIdx.x) / 2,
                                          reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const dkv_cta<T, Head, Capped> block{
      maps,  g, base, reinterpret_cast<int*>(memory + shape::stage_info), scheduler, static_cast<int>(blockIdx.x) % 2,
      blocks};
  if (scheduler.sorted()) {
    int2* const attended = reinterpret_cast<int2*>(memory);
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += static_cast<int>(blockDim.x))
      attended[b] = make_int2(g.statistics.key_bounds[b].x, g.statistics.key_bounds[b].y);
    __syncthreads();
    scheduler.sort(reinterpret_cast<int*>(attended + blocks), [&](int in_slab) {
      const int t = g.slab.tile + in_slab;
      int n = 0;
      for (int b = 0; b < blocks; ++b) n += attended[b].x < (t + 1) * shape::keys && attended[b].y > t * shape::keys;
      return n;
    });
  }
  block.start();
  if (threadIdx.x < 128) {
    ptx::dealloc_registers<(Head < 128 ? 40 : 24)>();  // the total must not exceed the registers at launch
    if (threadIdx.x < 32) block.produce();
  } else {
    ptx::alloc_registers<(Head < 128 ? 232 : 240)>();
    block.consume();
  }
  ptx::cluster_sync();  // the other CTA may still write to this one
#endif
}

}  // namespace graft::gpu
