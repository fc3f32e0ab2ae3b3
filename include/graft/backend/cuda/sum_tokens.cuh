// SPDX-License-Identifier: Apache-2.0
// sum_tokens: D = Zᵀ Q over all tokens, sm_90a: the gradient of a factor of a side branch. Z [tokens, columns] is wide and
// passes through once, Q [tokens, rank] is narrow.
//
// A thread block sums a part of the tokens for 128 columns of Z and Rank of Q: one thread fills a ring of stages of 64
// tokens by tensor copies, two warpgroups multiply 64 columns each. Both operands lie across, as they are stored: rows
// are tokens, the inner axis of the product. The blocks of a cluster have the same columns and other tokens: each adds a
// share of all their sums, in the order of the parts, and writes it. No atomics: the same bits every time. Two blocks
// share a multiprocessor, so that one loads while the other one waits.
//   Diagonal   Q is as wide as Z, and of Zᵀ Q only square blocks on the diagonal are wanted: the gradient of a rotation.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/cuda/gemm_shape.h>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

inline constexpr int sum_columns = 128, sum_step = 64, most_sum_parts = 8;

template <int Rank, bool Diagonal = false> struct sum_shape {
  static constexpr int threads = 288;
  static constexpr std::uint32_t box = sum_step * 128, q = sum_step * Rank * (Diagonal ? 4 : 2), stage = 2 * box + q;
  static constexpr int stages = (shared_memory_limit / 2 - 1024 - 256) / stage;
  static constexpr std::uint32_t barriers = stages * stage, bytes = barriers + 256 + 1024;
  static_assert(stages >= 2 && sum_columns * Rank * 4 <= barriers && 16 * stages <= 256);
};

struct sum_maps {
  CUtensorMap z, q;
};
struct sum_args {
  int steps;            // of 64 tokens
  int columns, rank;    // of Z and of Q, without padding; or the size of a block
  bool by_column;       // D is [columns, rank], else [rank, columns]
  bool adds;            // to what is there
  cells<float> factor;  // one number, or none
  cells<float> to;
};

template <class T, int Rank, bool Diagonal> struct sum_block {
  static_assert(!Diagonal || Rank == 64);
  using shape = sum_shape<Rank, Diagonal>;

  const sum_maps& maps;
  const sum_args& g;
  std::uint32_t base;
  float* partial;  // the same shared memory, once the ring is no longer used
  int part, parts, column0, rank0;

  __device__ std::uint32_t full(int q) const { return base + shape::barriers + 8 * q; }
  __device__ std::uint32_t empty(int q) const { return full(shape::stages + q); }
  __device__ int first() const { return static_cast<int>(static_cast<long long>(g.steps) * part / parts); }
  __device__ int last() const { return static_cast<int>(static_cast<long long>(g.steps) * (part + 1) / parts); }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::stages; ++i) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 2);
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
      ptx::load_tile(to, &maps.z, column0, s * sum_step, full(q), ptx::evict_first);
      ptx::load_tile(to + shape::box, &maps.z, column0 + 64, s * sum_step, full(q), ptx::evict_first);
      if constexpr (Diagonal) {
        ptx::load_tile(to + 2 * shape::box, &maps.q, column0, s * sum_step, full(q));
        ptx::load_tile(to + 3 * shape::box, &maps.q, column0 + 64, s * sum_step, full(q));
      } else {
        ptx::load_tile(to + 2 * shape::box, &maps.q, rank0, s * sum_step, full(q), ptx::evict_last);
      }
      if (++q == shape::stages) q = 0, phase ^= 1;
    }
  }
  // Where column c of Z and r of Q meet: in the order of the result.
  __device__ int place(int c, int r) const { return Diagonal || g.by_column ? c * Rank + r : r * sum_columns + c; }

  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x / 128), thread = static_cast<int>(threadIdx.x % 128);
    float acc[Rank / 2] = {};
    int q = 0, before = -1;
    std::uint32_t phase = 0;
    for (int s = first(); s < last(); ++s) {
      ptx::barrier_wait(full(q), phase);
      const std::uint32_t at = base + q * shape::stage;
      const std::uint64_t z = across_descriptor(at + group * shape::box, 0),
                          right = across_descriptor(at + (Diagonal ? 2 + group : 2) * shape::box, 0, 2 * Rank);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
        wgmma<T, Rank>::template shared<true, true>(acc, z + 128 * kk, right + 2 * Rank * kk, true);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && thread == 0) ptx::barrier_arrive(empty(before));
      before = q;
      if (++q == shape::stages) q = 0, phase ^= 1;
    }
    wgmma_wait<0>();
    ptx::named_barrier(1, 256);  // the other warpgroup reads the ring no more
    const int column = group * 64 + thread / 32 * 16 + thread % 32 / 4, r = thread % 4 * 2;
#pragma unroll
    for (int e = 0; e < Rank / 2; ++e) partial[place(column + 8 * ((e >> 1) & 1), r + e / 4 * 8 + (e & 1))] = acc[e];
  }
  __device__ void write(int i, float v) const {
    if constexpr (Diagonal) {
      const int c = column0 + i / Rank, other = c / 64 * 64 + i % Rank, b = g.rank;
      if (c < g.columns && c / b == other / b) {
        const long long at = (static_cast<long long>(c) * b) + other % b;
        g.to.put(at, g.adds ? g.to[at] + v : v);
      }
      return;
    }
    const int c = column0 + (g.by_column ? i / Rank : i % sum_columns),
              r = rank0 + (g.by_column ? i % Rank : i / sum_columns);
    if (c >= g.columns || r >= g.rank) return;
    const long long at =
        g.by_column ? static_cast<long long>(c) * g.rank + r : static_cast<long long>(r) * g.columns + c;
    if (g.factor.at != nullptr) v *= g.factor[0];
    g.to.put(at, g.adds ? g.to[at] + v : v);
  }
  // This block's share of the sums of all parts; all of them are asked for before the first is added.
  __device__ void add_up() const {
    constexpr int quads = sum_columns * Rank / 4;
    for (int e = quads * part / parts + static_cast<int>(threadIdx.x); e < quads * (part + 1) / parts;
         e += shape::threads) {
      float4 v[most_sum_parts];
#pragma unroll
      for (int p = 0; p < most_sum_parts; ++p)
        v[p] = p < parts ? ptx::load_at(base + 16 * e, p) : make_float4(0, 0, 0, 0);
      float4 sum = v[0];
#pragma unroll
      for (int p = 1; p < most_sum_parts; ++p) sum.x += v[p].x, sum.y += v[p].y, sum.z += v[p].z, sum.w += v[p].w;
      write(4 * e, sum.x), write(4 * e + 1, sum.y), write(4 * e + 2, sum.z), write(4 * e + 3, sum.w);
    }
  }
};

template <class T, int Rank, bool Diagonal = false>
__global__ void __launch_bounds__(sum_shape<Rank, Diagonal>::threads, 2)
    sum_tokens_kernel(const __grid_constant__ sum_maps maps, const __grid_constant__ sum_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const sum_block<T, Rank, Diagonal> block{maps,
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
