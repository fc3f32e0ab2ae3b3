// SPDX-License-Identifier: Apache-2.0
// sum_tokens: D = Zᵀ Q over all tokens, sm_90a: the gradient of a factor of a side branch. Z [tokens, columns] is wide and
// passes through once, Q [tokens, rank] is narrow.
//
// A thread block sums a part of the tokens for 128 columns of Z and Rank of Q: one thread fills a ring of stages of 64
// tokens by tensor copies, two warpgroups multiply 64 columns each. Both operands lie across, as they are stored: rows
// are tokens, the inner axis of the product. The blocks of a cluster have the same columns and other tokens: each adds a
// share of all their sums, in the order of the parts, and writes it. No atomics: the same bits every time. Two blocks
// share a multiprocessor, so that one loads while the other one waits. With a Rank of 128 Z passes through half as often as
// with 64, and where there are no more blocks than multiprocessors each has a longer ring instead of a neighbour: 19.5 µs
// where two took 23, for 4096 x 4096 and 256. (Tiles of 128 x 256 need four parts to fill the device, and of such clusters
// an H200 has room for 30 at once: two waves, 34 µs.)
//   diagonal   Q is as wide as Z, and of Zᵀ Q only square blocks on the diagonal are wanted: the gradient of a rotation.
//   rows       D = Z Qᵀ instead: 128 rows of Z and Rank of Q, whose inner axis is cut into parts. S of a side branch of a
//              large rank, where whole tiles would leave half of the multiprocessors idle.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

inline constexpr int sum_columns = 128, sum_step = 64;

enum class sum_of : unsigned char { columns, diagonal, rows };

template <int Rank, sum_of What = sum_of::columns> struct sum_shape {
  static constexpr int threads = 288, blocks = 2, parts = 8;  // on a multiprocessor; in a cluster, at most
  static constexpr std::uint32_t box = sum_step * 128, q = sum_step * Rank * (What == sum_of::diagonal ? 4 : 2),
                                 stage = 2 * box + q;
  static constexpr int stages = (shared_memory_limit / blocks - 1024 - 256) / stage,
                       stages_alone = (shared_memory_limit - 1024 - 256) / stage;  // with a multiprocessor to itself
  static constexpr std::uint32_t bytes = stages * stage + 256 + 1024, bytes_alone = stages_alone * stage + 256 + 1024;
  // Sums in shared memory, in the order of the result: rows of Rank, or of 128. What is added to their length lets threads
  // with neighbouring rows write to different banks.
  static constexpr int by_column_pitch = Rank + 8, by_rank_pitch = sum_columns + 4;
  static_assert(stages >= 2 && sum_columns * by_column_pitch * 4 <= stages * stage &&
                Rank * by_rank_pitch * 4 <= stages * stage);
  static_assert(16 * stages_alone <= 256);
};

struct sum_maps {
  CUtensorMap z, q;
};
struct sum_args {
  int steps;            // of 64 tokens
  int columns, rank;    // of Z and of Q, without padding (or their rows); or the size of a block
  bool by_column;       // D is [columns, rank], else [rank, columns]
  bool adds;            // to what is there
  cells<float> factor;  // one number, or none
  cells<float> to;
  int stages = 0;  // of the ring; 0: as many as leave room for a second block
};

template <class T, int Rank, sum_of What> struct sum_block {
  static constexpr bool diagonal = What == sum_of::diagonal, along = What == sum_of::rows;
  static_assert(!diagonal || Rank == 64);
  using shape = sum_shape<Rank, What>;

  const sum_maps& maps;
  const sum_args& g;
  std::uint32_t base;
  float* partial;  // the same shared memory, once the ring is no longer used
  int part, parts, column0, rank0;

  __device__ int stages() const { return g.stages > 0 ? g.stages : shape::stages; }
  __device__ std::uint32_t full(int q) const { return base + stages() * shape::stage + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(stages() + q); }
  __device__ int first() const { return static_cast<int>(static_cast<long long>(g.steps) * part / parts); }
  __device__ int last() const { return static_cast<int>(static_cast<long long>(g.steps) * (part + 1) / parts); }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages(); ++i) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 2);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }
  __device__ void produce() const {
    int q = 0;
    std::uint32_t phase = 1;
    for (int s = first(); s < last(); ++s) {
      const std::uint32_t to = base + q * shape::stage;
      ptx::barrier_wait(empty(q), phase);
      ptx::barrier_expect(full(q), shape::stage);
      if constexpr (along) {
        ptx::load_tile(to, &maps.z, s * sum_step, column0, full(q), ptx::evict_first);
        ptx::load_tile(to + 2 * shape::box, &maps.q, s * sum_step, rank0, full(q), ptx::evict_last);
      } else {
        ptx::load_tile(to, &maps.z, column0, s * sum_step, full(q), ptx::evict_first);
        ptx::load_tile(to + shape::box, &maps.z, column0 + 64, s * sum_step, full(q), ptx::evict_first);
        if constexpr (diagonal) {
          ptx::load_tile(to + 2 * shape::box, &maps.q, column0, s * sum_step, full(q));
          ptx::load_tile(to + 3 * shape::box, &maps.q, column0 + 64, s * sum_step, full(q));
        } else {
#pragma unroll
          for (int i = 0; i < (Rank + 63) / 64; ++i)
            ptx::load_tile(to + (2 + i) * shape::box, &maps.q, rank0 + 64 * i, s * sum_step, full(q), ptx::evict_last);
        }
      }
      if (++q == stages()) q = 0, phase ^= 1;
    }
  }
  __device__ bool by_column() const { return What != sum_of::columns || g.by_column; }
  // Where column c of Z and r of Q meet.
  __device__ int place(int c, int r) const {
    return by_column() ? c * shape::by_column_pitch + r : r * shape::by_rank_pitch + c;
  }
  // One step of the products, 64 columns of Z for a warpgroup.
  __device__ __forceinline__ void multiply(float (&acc)[Rank / 2], std::uint32_t at, int group) const {
    if constexpr (along) {
      const std::uint64_t z = tile_descriptor(at + group * shape::box), q = tile_descriptor(at + 2 * shape::box);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma<T, Rank>::shared(acc, z + 2 * kk, q + 2 * kk, true);
    } else {
      constexpr int pitch = Rank < 64 ? 2 * Rank : 128;  // of a row of Q in shared memory
      const std::uint64_t z = across_descriptor(at + group * shape::box, 0),
                          q = across_descriptor(at + (diagonal ? 2 + group : 2) * shape::box,
                                                Rank > 64 ? shape::box : 0, pitch);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
        wgmma<T, Rank>::template shared<true, true>(acc, z + 128 * kk, q + pitch * kk, true);
    }
  }

  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x / 128), thread = static_cast<int>(threadIdx.x % 128);
    float acc[Rank / 2] = {};
    int q = 0, before = -1;
    std::uint32_t phase = 0;
    for (int s = first(); s < last(); ++s) {
      ptx::barrier_wait(full(q), phase);
      wgmma_fence();
      multiply(acc, base + q * shape::stage, group);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && thread == 0) ptx::barrier_arrive(empty(before));
      before = q;
      if (++q == stages()) q = 0, phase ^= 1;
    }
    wgmma_wait<0>();
    ptx::named_barrier(1, 256);  // the other warpgroup reads the ring no more
    const int column = group * 64 + thread / 32 * 16 + thread % 32 / 4, r = thread % 4 * 2;
#pragma unroll
    for (int e = 0; e < Rank / 2; e += 2) {
      float* const to = partial + place(column + 8 * ((e >> 1) & 1), r + e / 4 * 8);
      if (by_column())
        *reinterpret_cast<float2*>(to) = make_float2(acc[e], acc[e + 1]);
      else
        to[0] = acc[e], to[shape::by_rank_pitch] = acc[e + 1];
    }
  }
  __device__ void write(int row, int column, float v) const {
    const int c = column0 + (by_column() ? row : column);
    if constexpr (diagonal) {
      const int other = c / 64 * 64 + column, b = g.rank;
      if (c < g.columns && c / b == other / b) {
        const long long at = (static_cast<long long>(c) * b) + other % b;
        g.to.put(at, g.adds ? g.to[at] + v : v);
      }
      return;
    }
    const int r = rank0 + (by_column() ? column : row);
    if (c >= g.columns || r >= g.rank) return;
    const long long at =
        by_column() ? static_cast<long long>(c) * g.rank + r : static_cast<long long>(r) * g.columns + c;
    g.to.put(at, g.adds ? g.to[at] + v : v);
  }
  // Four neighbours at once, where the result is stored as it is computed or as T and they lie at a multiple of four.
  __device__ bool by_four() const {
    const int length = by_column() ? g.rank : g.columns;
    return !diagonal && !g.adds && length % 4 == 0 && reinterpret_cast<std::uintptr_t>(g.to.at) % 16 == 0 &&
           (g.to.type == dtype::f32 || g.to.type == dtype_of<T>);
  }
  __device__ void write_four(int row, int column, const float4& v) const {
    const int down = by_column() ? column0 + row : rank0 + row,
              across = by_column() ? rank0 + column : column0 + column;
    const int rows = by_column() ? g.columns : g.rank, length = by_column() ? g.rank : g.columns;
    if (down >= rows || across >= length) return;
    const long long at = static_cast<long long>(down) * length + across;
    if (g.to.type == dtype::f32)
      *reinterpret_cast<float4*>(static_cast<float*>(g.to.at) + at) = v;
    else
      *reinterpret_cast<uint2*>(static_cast<T*>(g.to.at) + at) = make_uint2(pack<T>(v.x, v.y), pack<T>(v.z, v.w));
  }
  // This block's share of the sums of all parts; all of them are asked for before the first is added.
  __device__ void add_up() const {
    constexpr int quads = sum_columns * Rank / 4, at_once = 1;
    const int width = by_column() ? Rank : sum_columns,
              pitch = by_column() ? shape::by_column_pitch : shape::by_rank_pitch;
    const int end = quads * (part + 1) / parts;
    const float factor = g.factor.at != nullptr ? g.factor[0] : 1.0F;
    const bool fours = by_four();
    std::uint32_t from[shape::parts];
#pragma unroll
    for (int p = 0; p < shape::parts; ++p) from[p] = ptx::address_at(base, p < parts ? p : 0);
#pragma unroll 1
    for (int e0 = quads * part / parts + static_cast<int>(threadIdx.x); e0 < end; e0 += at_once * shape::threads) {
      float4 v[at_once][shape::parts];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int p = 0; p < shape::parts; ++p) {
          const int e = e0 + i * shape::threads, place = 4 * e / width * pitch + 4 * e % width;
          v[i][p] = p < parts && e < end ? ptx::load_cluster(from[p] + 4 * place) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int e = e0 + i * shape::threads, row = 4 * e / width, column = 4 * e % width;
        float4 sum = v[i][0];
#pragma unroll
        for (int p = 1; p < shape::parts; ++p)
          sum.x += v[i][p].x, sum.y += v[i][p].y, sum.z += v[i][p].z, sum.w += v[i][p].w;
        if (e >= end) continue;
        sum = make_float4(factor * sum.x, factor * sum.y, factor * sum.z, factor * sum.w);
        if (fours) {
          write_four(row, column, sum);
          continue;
        }
        write(row, column, sum.x), write(row, column + 1, sum.y);
        write(row, column + 2, sum.z), write(row, column + 3, sum.w);
      }
    }
  }
};

template <class T, int Rank, sum_of What = sum_of::columns>
__global__ void __launch_bounds__(sum_shape<Rank, What>::threads, sum_shape<Rank, What>::blocks)
    sum_tokens_kernel(const __grid_constant__ sum_maps maps, const __grid_constant__ sum_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const sum_block<T, Rank, What> block{maps,
                                       g,
                                       base,
                                       reinterpret_cast<float*>(raw + (base - at)),
                                       static_cast<int>(blockIdx.x),
                                       static_cast<int>(gridDim.x),
                                       static_cast<int>(blockIdx.y) * sum_columns,
                                       static_cast<int>(blockIdx.z) * Rank};
  block.start();
  if (threadIdx.x < 256)
    block.consume();
  else if (threadIdx.x == 256)
    block.produce();
  __syncwarp();
  ptx::cluster_sync();
  block.add_up();
  ptx::cluster_sync();  // nobody leaves while others read its sums
#endif
}

}  // namespace graft::cuda
