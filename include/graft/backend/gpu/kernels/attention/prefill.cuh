// SPDX-License-Identifier: Apache-2.0
// Prefill attention, forward, sm_90a (FlashAttention-style, wgmma and TMA), with or without a KV cache.
//
//   O = softmax(Q Kᵀ / √d) V   Q, O [rows, heads, d]   K, V [rows or slots, kv_heads, d]   lse [heads, rows]
//   Scores may have a soft cap (Capped); a sink joins the sum of its row after the last key (softmax_rows.cuh).
//
// The softmax is taken block by block over the keys (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022,
// arXiv 2205.14135). A warp rescales its rows only where a maximum grew by more than 8 in log2 units.
//
// Tile         128 query rows x 128 keys (64 keys for d > 128). Persistent CTAs; tile/tile_scheduler.cuh deals out
//              tiles.
// Warp roles   Warpgroup 0: one warp loads by TMA. Warpgroups 1 and 2: 64 query rows each.
// Cluster      2: two query heads that share a KV head; each CTA loads half of every K and V tile and multicasts it.
// Pipeline     K and V in the order of their use, K0 K1 V0 K2 V1 …, so that Q Kᵀ of a block overlaps P V of the
//              previous one. Q has a ring of its own. Key blocks go from the last one down; blocks that all rows attend
//              to need no mask.
// Phases       Attention ranges must be written before the previous kernel starts: tiles are sorted while it ends.
//              Masked keys are multiplied by 0, so their memory must hold finite numbers (a new cache is zeroed).
// Measured     H200, causal, 32 heads over 8 of 128, bf16: 57.7 µs for 2048 tokens (595 TFLOP/s), 0.71 of cuDNN's time;
//              757.8 µs for 8192 (726 TFLOP/s), 0.86 (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/attention/key_blocks.cuh>
#include <graft/backend/gpu/kernels/attention/softmax_rows.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

namespace graft::gpu {

struct prefill_maps {
  CUtensorMap q, k, v, o;
};
struct prefill_args {
  attention_ranges ranges;
  int heads, group;  // query heads, and query heads per KV head
  float scale;
  float* lse;  // [heads][rows]: log-sum-exp of a row's scores and sink, +inf where it attends to no key; or null
  score_cap cap;
  attention_sinks sinks;
};

template <class T, int Head, int Cluster, bool Capped> struct prefill_cta {
  using shape = prefill_shape<Head>;
  static constexpr int keys = shape::keys;
  static_assert(Cluster == 1 || shape::chunks % Cluster == 0);

  const prefill_maps& maps;
  const prefill_args& g;
  std::uint32_t base;
  int2* stage_info;  // per stage with K: first key; bit 0: no mask needed, bit 1: another key block follows
  longest_first_scheduler scheduler;
  int rank;

  __device__ pipeline q_ring() const { return {base + shape::barriers, shape::q_buffers}; }
  __device__ pipeline kv_ring() const {
    return {base + shape::barriers + pipeline::bytes(shape::q_buffers), shape::stages};
  }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::tile; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::q_buffers; ++i) q_ring().init(i, 1, 2);
      for (int i = 0; i < shape::stages; ++i) kv_ring().init(i, 1, 8 + 2 * (Cluster - 1));
      ptx::barrier_init_fence();
    }
    if constexpr (Cluster > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::launch_dependents();
  }

  __device__ void produce() const {
    const int lane = static_cast<int>(threadIdx.x);
    int tile, column;
    pipeline_state at = pipeline_state::producer();
    auto put = [&](const CUtensorMap* map, int block, int head, int2 info) {
      if (lane == 0) {
        kv_ring().producer_acquire(at);
        stage_info[at.stage] = info;
        const std::uint32_t full = kv_ring().producer_commit(at.stage, shape::tile);
        constexpr int rank_chunks = shape::chunks / Cluster;
        const std::uint32_t to = stage(at.stage) + rank * (shape::tile / Cluster);
        const int chunk = head / g.group * shape::chunks + rank * rank_chunks;
        if constexpr (Cluster == 1)
          ptx::load_box(to, map, block * keys, chunk, full);
        else
          ptx::load_box_multicast(to, map, block * keys, chunk, full, 3);
      }
      at.advance(shape::stages);
    };
    ptx::wait_for_dependency();
#pragma unroll 1
    for (int i = 0; scheduler.take(i, tile, column); ++i) {
      const int head = column * Cluster + rank, buffer = i % shape::q_buffers;
      if (lane == 0) {
        const std::uint32_t to = base + buffer * shape::q;
        q_ring().producer_acquire({buffer, static_cast<std::uint32_t>(i / shape::q_buffers & 1) ^ 1});
        const std::uint32_t full = q_ring().producer_commit(buffer, shape::q);
        for (int w = 0; w < 2; ++w)
          ptx::load_box(to + w * shape::rows_bytes, &maps.q, tile * attention_tile_rows + w * 64, head * shape::chunks,
                        full);
      }
      const kv_block_iterator<keys> key_blocks(g.ranges, tile * attention_tile_rows, lane);
      int now = ::max(0, key_blocks.before(INT_MAX)), before = -1;  // a tile without any key gets one masked block
#pragma unroll 1
      while (now >= 0 || before >= 0) {
        int next = -1;
        if (now >= 0) {
          next = key_blocks.before(now * keys);
          const int whole = key_blocks.whole(now) ? 1 : 0;
          put(&maps.k, now, head, make_int2(now * keys, whole + (next >= 0 ? 2 : 0)));
        }
        if (before >= 0) put(&maps.v, before, head, make_int2(0, 0));
        before = now, now = next;
      }
    }
  }

  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x / 128) - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32), thread = static_cast<int>(threadIdx.x % 128);
    const int own_row = group * 64 + warp * 16 + lane / 4, own_column = lane % 4 * 2;
    const float unit = score_unit<Capped>(g.scale, g.cap), c = unit * log2_e;
    constexpr std::uint32_t next_chunk = keys * shape::pitch;
    int tile, column;
    pipeline_state at;
    float s[keys / 2], o[Head / 2], largest[2], sum[2];
    std::uint32_t p[keys / 16][4];
    thread_rows rows;

    // Every warp arrives for its own read of stage_info; one thread per warpgroup arrives at the other CTA.
    auto release = [&](int which, reads_done done) {
      if (lane == 0) kv_ring().consumer_release(which, done);
      if (Cluster > 1 && thread == 0) kv_ring().consumer_release(which, rank ^ 1, done);
    };
    auto release_and_advance = [&](reads_done done) { release(at.stage, done), at.advance(shape::stages); };
#pragma unroll 1
    for (int i = 0; scheduler.take(i, tile, column); ++i) {
      const int head = column * Cluster + rank, buffer = i % shape::q_buffers;
      const std::uint32_t q = base + buffer * shape::q + group * shape::rows_bytes;
      rows.load(g.ranges, tile * attention_tile_rows + own_row);
      q_ring().consumer_wait({buffer, static_cast<std::uint32_t>(i / shape::q_buffers & 1)});
      kv_ring().consumer_wait(at);
      mma_along_head<T, Head, keys>(s, q, 64 * shape::pitch, stage(at.stage), next_chunk);
      int2 info = read_stage_info(stage_info + at.stage, lane);
      // Q may be loaded into the other buffer when the store of the previous tile's O has read it.
      if (shape::q_buffers == 2 && thread == 0 && i > 0) q_ring().consumer_release(buffer ^ 1, stores_done());
      reads_done done = products_done<0>();
      pin(s);
      release_and_advance(done);
      if constexpr (Capped) cap_scores(s, g.cap);
      if ((info.y & 1) == 0) rows.mask(s, info.x + own_column);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[h] = fmaxf(row_max(s, h), -1e30F);  // finite even where all keys are masked
        sum[h] = exponentials(s, h, c, largest[h]);
      }
      pack_rows<T>(p, s);
      bool first_block = true;
#pragma unroll 1
      while ((info.y & 2) != 0) {
        const int with_k = at.stage;
        kv_ring().consumer_wait(at);
        mma_along_head<T, Head, keys>(s, q, 64 * shape::pitch, stage(at.stage), next_chunk);
        info = read_stage_info(stage_info + at.stage, lane);
        at.advance(shape::stages);
        kv_ring().consumer_wait(at);
        mma_over_rows<T, Head>(o, p, stage(at.stage), next_chunk, !first_block);
        first_block = false;
        done = products_done<1>();
        pin(s);
        release(with_k, done);
        if constexpr (Capped) cap_scores(s, g.cap);
        if ((info.y & 1) == 0) rows.mask(s, info.x + own_column);
        float factor[2];
        bool grown = false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          factor[h] = fmaxf(largest[h], row_max(s, h));
          grown |= (factor[h] - largest[h]) * c > 8.0F;
        }
        grown = __any_sync(~0U, grown);
        if (grown) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float now = factor[h];
            factor[h] = exp2_approx((largest[h] - now) * c);
            largest[h] = now, sum[h] *= factor[h];
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) sum[h] += exponentials(s, h, c, largest[h]);
        done = products_done<0>();
        pin(o);
        release_and_advance(done);
        pack_rows<T>(p, s);
        if (grown) {
#pragma unroll
          for (int e = 0; e < Head / 2; ++e) o[e] *= factor[e / 2 % 2];
        }
      }
      kv_ring().consumer_wait(at);
      mma_over_rows<T, Head>(o, p, stage(at.stage), next_chunk, !first_block);
      float inverse[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(~0U, sum[h], 1), sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
        const int r = tile * attention_tile_rows + own_row + 8 * h;
        float factor = 1;
        if (g.sinks.p != nullptr && sum[h] > 0) {
          ptx::wait_for_dependency();
          float most = largest[h] * c;
          factor = add_sink(most, sum[h], load_sink<T>(g.sinks, r, head)), largest[h] = most / c;
        }
        inverse[h] = sum[h] > 0 ? factor / sum[h] : 0;
        if (g.lse != nullptr && lane % 4 == 0 && r < g.ranges.rows)
          g.lse[static_cast<long long>(head) * g.ranges.rows + r] =
              sum[h] > 0 ? largest[h] * unit + __logf(sum[h]) : INFINITY;
      }
      done = products_done<0>();
      pin(o);
      release_and_advance(done);
      store_rows<T, Head>(&maps.o, o, inverse[0], inverse[1], q, tile * attention_tile_rows + group * 64, head,
                          1 + group);
      if (shape::q_buffers == 1 && thread == 0) q_ring().consumer_release(0, stores_done());
    }
    if (thread == 0) ptx::wait_for_stores();
  }
};

template <class T, int Head, int Cluster, bool Capped = false>
__global__ void __launch_bounds__(384, 1)
    prefill_kernel(const __grid_constant__ prefill_maps maps, const __grid_constant__ prefill_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = prefill_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const longest_first_scheduler scheduler{(g.ranges.rows + attention_tile_rows - 1) / attention_tile_rows,
                                          g.heads / Cluster, static_cast<int>(gridDim.x) / Cluster,
                                          static_cast<int>(blockIdx.x) / Cluster,
                                          reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const prefill_cta<T, Head, Cluster, Capped> block{maps,      g,
                                                    base,      reinterpret_cast<int2*>(memory + shape::stage_info),
                                                    scheduler, static_cast<int>(blockIdx.x) % Cluster};
  scheduler.sort(reinterpret_cast<int*>(memory), [&](int t) { return tile_work(g.ranges, t); });
  block.start();
  if (threadIdx.x < 128) {
    ptx::dealloc_registers<40>();
    if (threadIdx.x < 32) block.produce();
  } else {
    ptx::alloc_registers<232>();
    block.consume();
  }
  if constexpr (Cluster > 1) ptx::cluster_sync();  // the other CTA may still write to this one
#endif
}

}  // namespace graft::gpu
