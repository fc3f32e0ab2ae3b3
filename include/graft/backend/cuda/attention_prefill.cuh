// SPDX-License-Identifier: Apache-2.0
// Attention of many rows, forward, sm_90a: O = softmax(Q Kᵀ / √head) V with the softmax taken block by block (Milakov and
// Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135), and where asked for the logarithm of each row's
// sum, which the backward pass reads.
//
// A thread block is persistent: one warp produces, by tensor copies, two warpgroups have 64 rows of queries each. A tile's
// keys are visited from the last block down (attention_tiles.cuh); only blocks that not all rows look at are masked. The
// ring holds K and V in the order of their use, K0 K1 V0 K2 V1 …, so that the scores of one block are multiplied while
// the probabilities of the one before are added up. A row is rescaled only where its largest score grew by more than 2⁸.
//   Cluster   2: two heads that share keys and values; each block requests half of every tile for both.
// What rows look at must be there before the kernel ahead begins: tiles are sorted while that one ends.
// Masked keys are multiplied by 0: what lies in their place must be numbers, so a new cache is filled with zeros.
#pragma once
#include <graft/backend/cuda/attention_rows.cuh>
#include <graft/backend/cuda/attention_tiles.cuh>

namespace graft::cuda {

struct prefill_maps {
  CUtensorMap q, k, v, o;
};
struct prefill_args {
  row_spans spans;
  int heads, group;  // of queries, and how many of them share keys
  float scale;
  float* sums;  // [heads][rows]: log Σ exp of a row's scores, +inf where it looks at nothing; or null
};

template <class T, int Head, int Cluster> struct prefill_block {
  using shape = prefill_shape<Head>;
  static constexpr int keys = shape::keys;
  static_assert(Cluster == 1 || shape::chunks % Cluster == 0);

  const prefill_maps& maps;
  const prefill_args& g;
  std::uint32_t base;
  int2* notes;  // for each stage with K: its first key; 1 where it is whole, and 2 where more keys follow
  tile_deal deal;
  int rank;

  __device__ std::uint32_t q_full(int i) const { return base + shape::barriers + 8 * i; }
  __device__ std::uint32_t q_empty(int i) const { return q_full(shape::q_buffers + i); }
  __device__ std::uint32_t full(int i) const { return q_full(2 * shape::q_buffers + i); }
  __device__ std::uint32_t empty(int i) const { return full(shape::stages + i); }
  __device__ std::uint32_t stage(int i) const { return base + shape::ring + i * shape::tile; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::q_buffers; ++i) ptx::barrier_init(q_full(i), 1), ptx::barrier_init(q_empty(i), 2);
      for (int i = 0; i < shape::stages; ++i)
        ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 8 + 2 * (Cluster - 1));
      ptx::barrier_init_fence();
    }
    if constexpr (Cluster > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::let_next_kernel_start();
  }

  __device__ void produce() const {
    const int lane = static_cast<int>(threadIdx.x);
    int at = 0, tile, column;
    std::uint32_t phase = 1;
    auto put = [&](const CUtensorMap* map, int block, int head, int2 note) {
      if (lane == 0) {
        ptx::barrier_wait(empty(at), phase);
        notes[at] = note;
        ptx::barrier_expect(full(at), shape::tile);
        constexpr int share = shape::chunks / Cluster;
        const std::uint32_t to = stage(at) + rank * (shape::tile / Cluster);
        const int chunk = head / g.group * shape::chunks + rank * share;
        if constexpr (Cluster == 1)
          ptx::load_box(to, map, block * keys, chunk, full(at));
        else
          ptx::load_box_multicast(to, map, block * keys, chunk, full(at), 3);
      }
      if (++at == shape::stages) at = 0, phase ^= 1;
    };
    ptx::wait_for_previous_kernel();
#pragma unroll 1
    for (int i = 0; deal.take(i, tile, column); ++i) {
      const int head = column * Cluster + rank, buffer = i % shape::q_buffers;
      if (lane == 0) {
        const std::uint32_t to = base + buffer * shape::q;
        ptx::barrier_wait(q_empty(buffer), (i / shape::q_buffers & 1) ^ 1);
        ptx::barrier_expect(q_full(buffer), shape::q);
        for (int w = 0; w < 2; ++w)
          ptx::load_box(to + w * shape::rows_bytes, &maps.q, tile * attention_rows + w * 64, head * shape::chunks,
                        q_full(buffer));
      }
      const key_walk<keys> walk(g.spans, tile * attention_rows, lane);
      int now = ::max(0, walk.before(INT_MAX)), before = -1;  // where no row looks at anything, one block is masked
#pragma unroll 1
      while (now >= 0 || before >= 0) {
        int next = -1;
        if (now >= 0) {
          next = walk.before(now * keys);
          const int whole = walk.whole(now) ? 1 : 0;
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
    const float c = g.scale * log2_e;
    constexpr std::uint32_t next_chunk = keys * shape::pitch;
    int at = 0, tile, column;
    std::uint32_t phase = 0;
    float s[keys / 2], o[Head / 2], largest[2], sum[2];
    std::uint32_t p[keys / 16][4];
    thread_rows rows;

    auto advance = [&] {
      if (++at == shape::stages) at = 0, phase ^= 1;
    };
    // Each warp for itself, because of the note; to the other block a warpgroup, whose products end together.
    auto release = [&](int which) {
      if (lane == 0) ptx::barrier_arrive(empty(which));
      if (Cluster > 1 && thread == 0) ptx::barrier_arrive_at(empty(which), rank ^ 1);
    };
#pragma unroll 1
    for (int i = 0; deal.take(i, tile, column); ++i) {
      const int head = column * Cluster + rank, buffer = i % shape::q_buffers;
      const std::uint32_t q = base + buffer * shape::q + group * shape::rows_bytes;
      rows.load(g.spans, tile * attention_rows + own_row);
      ptx::barrier_wait(q_full(buffer), i / shape::q_buffers & 1);
      ptx::barrier_wait(full(at), phase);
      multiply_heads<T, Head, keys>(s, q, 64 * shape::pitch, stage(at), next_chunk);
      int2 note = read_note(notes + at, lane);
      if (shape::q_buffers == 2 && thread == 0 && i > 0)
        ptx::stores_have_read<0>(), ptx::barrier_arrive(q_empty(buffer ^ 1));  // the tile before has left
      wgmma_wait<0>(), pin(s);
      release(at), advance();
      if ((note.y & 1) == 0) rows.mask(s, note.x + own_column);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[h] = fmaxf(row_max(s, h), -1e30F);  // a number also where all is masked
        sum[h] = exponentials(s, h, c, largest[h]);
      }
      pack_rows<T>(p, s);
      bool fresh = true;
#pragma unroll 1
      while ((note.y & 2) != 0) {
        const int with_k = at;
        ptx::barrier_wait(full(at), phase);
        multiply_heads<T, Head, keys>(s, q, 64 * shape::pitch, stage(at), next_chunk);
        note = read_note(notes + at, lane);
        advance();
        ptx::barrier_wait(full(at), phase);
        multiply_rows<T, Head>(o, p, stage(at), next_chunk, !fresh);
        fresh = false;
        wgmma_wait<1>(), pin(s);
        release(with_k);
        if ((note.y & 1) == 0) rows.mask(s, note.x + own_column);
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
            factor[h] = exp2_fast((largest[h] - now) * c);
            largest[h] = now, sum[h] *= factor[h];
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) sum[h] += exponentials(s, h, c, largest[h]);
        wgmma_wait<0>(), pin(o);
        release(at), advance();
        pack_rows<T>(p, s);
        if (grown) {
#pragma unroll
          for (int e = 0; e < Head / 2; ++e) o[e] *= factor[e / 2 % 2];
        }
      }
      ptx::barrier_wait(full(at), phase);
      multiply_rows<T, Head>(o, p, stage(at), next_chunk, !fresh);
      float inverse[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(~0U, sum[h], 1), sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
        inverse[h] = sum[h] > 0 ? 1 / sum[h] : 0;
        const int r = tile * attention_rows + own_row + 8 * h;
        if (g.sums != nullptr && lane % 4 == 0 && r < g.spans.rows)
          g.sums[static_cast<long long>(head) * g.spans.rows + r] =
              sum[h] > 0 ? largest[h] * g.scale + __logf(sum[h]) : INFINITY;
      }
      wgmma_wait<0>(), pin(o);
      release(at), advance();
      store_rows<T, Head>(&maps.o, o, inverse[0], inverse[1], q, tile * attention_rows + group * 64, head, 1 + group);
      if (shape::q_buffers == 1 && thread == 0) ptx::stores_have_read<0>(), ptx::barrier_arrive(q_empty(0));
    }
    if (thread == 0) ptx::stores_done();
  }
};

template <class T, int Head, int Cluster>
__global__ void __launch_bounds__(384, 1)
    prefill_kernel(const __grid_constant__ prefill_maps maps, const __grid_constant__ prefill_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = prefill_shape<Head>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  std::uint8_t* const memory = raw + (base - at);
  const tile_deal deal{(g.spans.rows + attention_rows - 1) / attention_rows, g.heads / Cluster,
                       static_cast<int>(gridDim.x) / Cluster, static_cast<int>(blockIdx.x) / Cluster,
                       reinterpret_cast<std::uint16_t*>(memory + shape::order)};
  const prefill_block<T, Head, Cluster> block{
      maps, g, base, reinterpret_cast<int2*>(memory + shape::notes), deal, static_cast<int>(blockIdx.x) % Cluster};
  deal.sort(reinterpret_cast<int*>(memory), [&](int t) { return rows_work(g.spans, t); });
  block.start();
  if (threadIdx.x < 128) {
    ptx::give_registers<40>();
    if (threadIdx.x < 32) block.produce();
  } else {
    ptx::take_registers<232>();
    block.consume();
  }
  if constexpr (Cluster > 1) ptx::cluster_sync();  // nobody leaves while the other block may still write to it
#endif
}

}  // namespace graft::cuda
