// SPDX-License-Identifier: Apache-2.0
// Attention backward, second half, sm_90a (wgmma): gradient of the queries from dS, which backward_dkv.cuh stored.
//
//   dQ = dS K / √d      dS [heads, rows, keys] in tiles of 64 rows x 128 keys, K [rows, kv_heads, d], d <= 128
//
// Tile         256 rows of one query head per persistent CTA, so that K is read once for 256 rows; a step is 64 keys.
//              The kernel is bound by reading dS from memory.
// Warp roles   Warpgroup 0: one thread loads K and dS by TMA. Warpgroups 1 and 2: two blocks of 64 rows each.
// Pipeline     A stage is 64 keys of K and dS of those of the four row blocks that attend to them; every consumer
//              thread releases it when its products are complete.
// Layout       dS is stored in the register order of backward_dkv.cuh, with keys as rows; movmatrix transposes it.
// Reduction    Steps are added in order of the keys. Where dS of all keys does not fit in memory, one launch per
//              ds_slab adds to partial sums in the workspace, in slab order: the same call gives the same bits.
// Measured     In the figures of backward_dkv.cuh: forward and backward take 0.72 to 0.95 of cuDNN's time.
#pragma once
#include <graft/backend/gpu/kernels/attention/key_blocks.cuh>
#include <graft/backend/gpu/kernels/attention/row_statistics.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>

namespace graft::gpu {

struct dq_maps {
  CUtensorMap k, dq;
};
struct dq_args {
  int rows, heads, group;
  float scale;
  row_statistics statistics;
  ds_slab slab;
  float* sums;  // [query heads of the slab][blocks of 64 rows][64 * head]: partial dQ over slabs; null with one slab
  bool last;    // last slab of these heads: dQ is complete
};

template <class T, int Head> struct dq_cta {
  using shape = dq_shape<Head>;
  static constexpr int keys = shape::keys;

  const dq_maps& maps;
  const dq_args& g;
  std::uint32_t base;
  int* stage_info;  // per stage: one bit for each of four row blocks that attends to its keys; 16: another step follows
  longest_first_scheduler scheduler;
  int blocks;

  __device__ pipeline ring() const { return {base + shape::barriers, shape::stages}; }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::stage; }
  __device__ std::uint32_t scores(int i, int block) const {
    return stage(i) + shape::rows_bytes + block * shape::scores;
  }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::stages; ++i) ring().init(i, 1, 256);  // every consumer thread reads dS
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }

  __device__ const std::uint32_t* scores_of(int head, int block, int step) const {
    const long long before = (static_cast<long long>(head) * blocks + block) * g.slab.tiles + step / 2 - g.slab.tile;
    return g.slab.ds + before * ds_tile + step % 2 * (ds_tile / 2);
  }
  __device__ void produce() const {
    int tile, column;
    pipeline_state at = pipeline_state::producer();
#pragma unroll 1
    for (int i = 0; scheduler.take(i, tile, column); ++i) {
      int low[4], high[4], end = 0;
      const int begin = 2 * g.slab.tile, most = 2 * (g.slab.tile + g.slab.tiles);  // steps of the slab
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const bool there = tile * 4 + b < blocks;
        low[b] = there ? g.statistics.key_bounds[tile * 4 + b].x : INT_MAX,
        high[b] = there ? g.statistics.key_bounds[tile * 4 + b].y : 0;
        end = ::max(end, (high[b] + keys - 1) / keys);
      }
      end = ::min(end, most);
      auto attending = [&](int at_key) {
        int bits = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b)
          if (low[b] < at_key + keys && high[b] > at_key) bits |= 1 << b;
        return bits;
      };
      auto from = [&](int step) {  // the first step at or after `step` that any row attends to
        while (step < end && attending(step * keys) == 0) ++step;
        return step;
      };
      const int head = g.slab.column * g.group + column;
      int step = from(begin), next;
      do {  // a tile without any key gets one empty step
        next = from(step + 1);
        const int bits = step < end ? attending(step * keys) : 0;
        ring().producer_acquire(at);
        stage_info[at.stage] = bits + (next < end ? 16 : 0);
        const std::uint32_t full = ring().producer_commit(at.stage, shape::rows_bytes + __popc(bits) * shape::scores);
        ptx::load_box(stage(at.stage), &maps.k, step * keys, head / g.group * shape::chunks, full);
#pragma unroll 1
        for (int b = 0; b < 4; ++b)
          if ((bits >> b & 1) != 0)
            ptx::load_bulk_evict_first(scores(at.stage, b), scores_of(column, tile * 4 + b, step), shape::scores, full);
        at.advance(shape::stages);
        step = next;
      } while (step < end);
    }
  }

  // Transposes dS of the warp's 16 rows and 64 keys into `ds` and issues dq += dS K.
  __device__ __forceinline__ void add(float (&dq)[Head / 2], std::uint32_t (&ds)[4][4], std::uint32_t from,
                                      std::uint32_t k, bool keep) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4 v = ptx::load_shared_uint4(from + s * 2048);
      ds[s][0] = ptx::transpose_matrix(v.x), ds[s][1] = ptx::transpose_matrix(v.z);
      ds[s][2] = ptx::transpose_matrix(v.y), ds[s][3] = ptx::transpose_matrix(v.w);
    }
    mma_over_rows<T, Head>(dq, ds, k, 64 * shape::pitch, keep);
  }

  // Adds the slab's dQ of a block of 64 rows to the partial sum of earlier slabs; stores the sum, or the final dQ.
  __device__ __forceinline__ void finish(float (&dq)[Head / 2], bool any, int block, int column, int group) const {
    const int thread = static_cast<int>(threadIdx.x % 128);
    if (!any) {
#pragma unroll
      for (int e = 0; e < Head / 2; ++e) dq[e] = 0;
    }
    if (g.sums != nullptr) {
      float* const partial_dq =
          g.sums + (static_cast<long long>(column) * 4 * scheduler.tiles + block) * 64 * Head + thread;
      if (g.slab.tile > 0) {
#pragma unroll
        for (int e = 0; e < Head / 2; ++e) dq[e] += partial_dq[e * 128];
      }
      if (!g.last) {
#pragma unroll
        for (int e = 0; e < Head / 2; ++e) partial_dq[e * 128] = dq[e];
        return;
      }
    }
    if (thread == 0) ptx::wait_for_store_reads<0>();
    store_rows<T, Head>(&maps.dq, dq, g.scale, g.scale, base + group * shape::rows_bytes, block * 64,
                        g.slab.column * g.group + column, 1 + group);
  }

  __device__ void consume() const {
    const int group = warpgroup() - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32);
    const bool leader = threadIdx.x % 128 == 0;
    const std::uint32_t own = warp * 512 + lane * 16;
    int tile, column;
    pipeline_state at;
    float upper[Head / 2], lower[Head / 2];
    std::uint32_t first[4][4], second[4][4];
#pragma unroll 1
    for (int i = 0; scheduler.take(i, tile, column); ++i) {
      bool any_upper = false, any_lower = false;
      int info = 16;
#pragma unroll 1
      while ((info & 16) != 0) {
        ring().consumer_wait(at);
        info = stage_info[at.stage];
        const int attended = info >> 2 * group & 3;
        reads_done done = nothing_read();
        if (attended == 3) {
          add(upper, first, scores(at.stage, 2 * group) + own, stage(at.stage), any_upper);
          add(lower, second, scores(at.stage, 2 * group + 1) + own, stage(at.stage), any_lower);
          done = products_done<0>(), pin(upper), pin(lower);
          any_upper = any_lower = true;
        } else if (attended == 1) {
          add(upper, first, scores(at.stage, 2 * group) + own, stage(at.stage), any_upper);
          done = products_done<0>(), pin(upper);
          any_upper = true;
        } else if (attended == 2) {
          add(lower, second, scores(at.stage, 2 * group + 1) + own, stage(at.stage), any_lower);
          done = products_done<0>(), pin(lower);
          any_lower = true;
        }
        ring().consumer_release(at.stage, done);
        at.advance(shape::stages);
      }
      finish(upper, any_upper, tile * 4 + 2 * group, column, group);
      finish(lower, any_lower, tile * 4 + 2 * group + 1, column, group);
    }
    if (leader) ptx::wait_for_stores();
  }
};

template <class T, int Head>
__global__ void __launch_bounds__(384, 1)
    dq_kernel(const __grid_constant__ dq_maps maps, const __grid_constant__ dq_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = dq_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const int blocks = 2 * ((g.rows + attention_tile_rows - 1) / attention_tile_rows), tiles = (blocks + 3) / 4;
  const longest_first_scheduler scheduler{tiles, g.slab.columns * g.group, static_cast<int>(gridDim.x),
                                          static_cast<int>(blockIdx.x),
                                          reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const dq_cta<T, Head> block{maps, g, base, reinterpret_cast<int*>(memory + shape::stage_info), scheduler, blocks};
  scheduler.sort(reinterpret_cast<int*>(memory), [&](int t) {
    int n = 0;
    for (int b = 4 * t; b < ::min(4 * t + 4, blocks); ++b)
      n += ::max(0, g.statistics.key_bounds[b].y - g.statistics.key_bounds[b].x);
    return n;
  });
  block.start();
  if (threadIdx.x < 128) {
    ptx::dealloc_registers<40>();
    if (threadIdx.x == 0) block.produce();
  } else {
    ptx::alloc_registers<232>();
    block.consume();
  }
#endif
}

}  // namespace graft::gpu
