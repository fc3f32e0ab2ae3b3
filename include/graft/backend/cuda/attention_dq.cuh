// SPDX-License-Identifier: Apache-2.0
// The second half of attention's backward pass, sm_90a: the gradient of the queries, dQ = dS K / √head, with dS as the
// first half (attention_dkv.cuh) left it. A thread block is organised as in attention_prefill.cuh; its two warpgroups
// have 128 rows each, so that keys are read for 256 rows at once: the pace is that of dS through memory. A step is 64
// keys. dS lies as the registers of the first half had it, with keys as rows: its matrices are turned in registers.
#pragma once
#include <graft/backend/cuda/attention_notes.cuh>
#include <graft/backend/cuda/attention_tiles.cuh>

namespace graft::cuda {

struct query_grad_maps {
  CUtensorMap k, dq;
};
struct query_grad_args {
  int rows, heads, group;
  float scale;
  attention_notes notes;
  score_piece piece;  // as attention_dkv.cuh left it
  float* sums;  // [heads of queries][blocks of 64 rows][64 * head]: of the pieces before, and for those after; or null
  bool last;
};

template <class T, int Head> struct query_grad_block {
  using shape = query_grad_shape<Head>;
  static constexpr int keys = shape::keys;

  const query_grad_maps& maps;
  const query_grad_args& g;
  std::uint32_t base;
  int* notes;  // of each stage: a bit for each of four blocks of rows that looks at its keys, and 16 where more follow
  tile_deal deal;
  int blocks;

  __device__ std::uint32_t full(int i) const { return base + shape::barriers + 8 * i; }
  __device__ std::uint32_t empty(int i) const { return full(shape::stages + i); }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::stage; }
  __device__ std::uint32_t scores(int i, int block) const {
    return stage(i) + shape::rows_bytes + block * shape::scores;
  }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::stages; ++i)
        ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 256);  // free when everybody has read its dS
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }

  __device__ const std::uint32_t* scores_of(int head, int block, int step) const {
    const long long before = (static_cast<long long>(head) * blocks + block) * g.piece.tiles + step / 2 - g.piece.tile;
    return g.piece.ds + before * score_tile + step % 2 * (score_tile / 2);
  }
  __device__ void produce() const {
    int at = 0, tile, column;
    std::uint32_t phase = 1;
#pragma unroll 1
    for (int i = 0; deal.take(i, tile, column); ++i) {
      int low[4], high[4], end = 0;
      const int begin = 2 * g.piece.tile, most = 2 * (g.piece.tile + g.piece.tiles);  // steps of the piece
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const bool there = tile * 4 + b < blocks;
        low[b] = there ? g.notes.bounds[tile * 4 + b].x : INT_MAX, high[b] = there ? g.notes.bounds[tile * 4 + b].y : 0;
        end = ::max(end, (high[b] + keys - 1) / keys);
      }
      end = ::min(end, most);
      auto looking = [&](int at_key) {
        int bits = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b)
          if (low[b] < at_key + keys && high[b] > at_key) bits |= 1 << b;
        return bits;
      };
      auto from = [&](int step) {  // the first step from here on that somebody looks at
        while (step < end && looking(step * keys) == 0) ++step;
        return step;
      };
      const int head = g.piece.column * g.group + column;
      int step = from(begin), next;
      do {  // where no row looks at anything, once
        next = from(step + 1);
        const int bits = step < end ? looking(step * keys) : 0;
        ptx::barrier_wait(empty(at), phase);
        notes[at] = bits + (next < end ? 16 : 0);
        ptx::barrier_expect(full(at), shape::rows_bytes + __popc(bits) * shape::scores);
        ptx::load_box(stage(at), &maps.k, step * keys, head / g.group * shape::chunks, full(at));
#pragma unroll 1
        for (int b = 0; b < 4; ++b)
          if ((bits >> b & 1) != 0)
            ptx::load_bytes_once(scores(at, b), scores_of(column, tile * 4 + b, step), shape::scores, full(at));
        if (++at == shape::stages) at = 0, phase ^= 1;
        step = next;
      } while (step < end);
    }
  }

  // dS of a warp's 16 rows and 64 keys, turned; the product with the keys is on its way.
  __device__ __forceinline__ void add(float (&dq)[Head / 2], std::uint32_t (&ds)[4][4], std::uint32_t from,
                                      std::uint32_t k, bool keep) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4 v = ptx::load_shared_uint4(from + s * 2048);
      ds[s][0] = ptx::turn_matrix(v.x), ds[s][1] = ptx::turn_matrix(v.z);
      ds[s][2] = ptx::turn_matrix(v.y), ds[s][3] = ptx::turn_matrix(v.w);
    }
    multiply_rows<T, Head>(dq, ds, k, 64 * shape::pitch, keep);
  }

  // What a block of 64 rows has of this piece, to the pieces before it or on its way out.
  __device__ __forceinline__ void finish(float (&dq)[Head / 2], bool any, int block, int column, int group) const {
    const int thread = static_cast<int>(threadIdx.x % 128);
    if (!any) {
#pragma unroll
      for (int e = 0; e < Head / 2; ++e) dq[e] = 0;
    }
    if (g.sums != nullptr) {
      float* const kept = g.sums + (static_cast<long long>(column) * 4 * deal.tiles + block) * 64 * Head + thread;
      if (g.piece.tile > 0) {
#pragma unroll
        for (int e = 0; e < Head / 2; ++e) dq[e] += kept[e * 128];
      }
      if (!g.last) {
#pragma unroll
        for (int e = 0; e < Head / 2; ++e) kept[e * 128] = dq[e];
        return;
      }
    }
    if (thread == 0) ptx::stores_have_read<0>();
    store_rows<T, Head>(&maps.dq, dq, g.scale, g.scale, base + group * shape::rows_bytes, block * 64,
                        g.piece.column * g.group + column, 1 + group);
  }

  __device__ void consume() const {
    const int group = warpgroup() - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32);
    const bool leader = threadIdx.x % 128 == 0;
    const std::uint32_t own = warp * 512 + lane * 16;
    int at = 0, tile, column;
    std::uint32_t phase = 0;
    float upper[Head / 2], lower[Head / 2];
    std::uint32_t first[4][4], second[4][4];
#pragma unroll 1
    for (int i = 0; deal.take(i, tile, column); ++i) {
      bool any_upper = false, any_lower = false;
      int note = 16;
#pragma unroll 1
      while ((note & 16) != 0) {
        ptx::barrier_wait(full(at), phase);
        note = notes[at];
        const int looks = note >> 2 * group & 3;
        if (looks == 3) {
          add(upper, first, scores(at, 2 * group) + own, stage(at), any_upper);
          add(lower, second, scores(at, 2 * group + 1) + own, stage(at), any_lower);
          wgmma_wait<0>(), pin(upper), pin(lower);
          any_upper = any_lower = true;
        } else if (looks == 1) {
          add(upper, first, scores(at, 2 * group) + own, stage(at), any_upper);
          wgmma_wait<0>(), pin(upper);
          any_upper = true;
        } else if (looks == 2) {
          add(lower, second, scores(at, 2 * group + 1) + own, stage(at), any_lower);
          wgmma_wait<0>(), pin(lower);
          any_lower = true;
        }
        ptx::barrier_arrive(empty(at));
        if (++at == shape::stages) at = 0, phase ^= 1;
      }
      finish(upper, any_upper, tile * 4 + 2 * group, column, group);
      finish(lower, any_lower, tile * 4 + 2 * group + 1, column, group);
    }
    if (leader) ptx::stores_done();
  }
};

template <class T, int Head>
__global__ void __launch_bounds__(384, 1)
    query_grad_kernel(const __grid_constant__ query_grad_maps maps, const __grid_constant__ query_grad_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = query_grad_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const int blocks = 2 * ((g.rows + attention_rows - 1) / attention_rows), tiles = (blocks + 3) / 4;
  const tile_deal deal{tiles, g.piece.columns * g.group, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x),
                       reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const query_grad_block<T, Head> block{maps, g, base, reinterpret_cast<int*>(memory + shape::notes), deal, blocks};
  deal.sort(reinterpret_cast<int*>(memory), [&](int t) {
    int n = 0;
    for (int b = 4 * t; b < ::min(4 * t + 4, blocks); ++b) n += ::max(0, g.notes.bounds[b].y - g.notes.bounds[b].x);
    return n;
  });
  block.start();
  if (threadIdx.x < 128) {
    ptx::give_registers<40>();
    if (threadIdx.x == 0) block.produce();
  } else {
    ptx::take_registers<232>();
    block.consume();
  }
#endif
}

}  // namespace graft::cuda
