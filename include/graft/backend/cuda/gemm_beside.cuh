// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens beside a gemm, sm_90a: D = Zᵀ Q, the gradients of the factors of its side branch, by thread blocks
// on the multiprocessors that its tiles leave idle (4 of 132 with 4096 tokens and columns), in the same launch.
//
// A block owns a part of the columns of Z over all tokens, so that nothing is added up between blocks: no atomics, the
// same bits every time. One thread fills a ring of stages, 128 tokens of 128 columns each; another one brings the 128
// tokens of Q that belong to them, and where Q is S of the gemm it waits until the tiles have published these rows. Two
// warpgroups multiply 64 columns each: both operands lie across, as they are stored. The sums of several stages' columns
// stay in registers; where a block has more columns than that, it passes over the tokens again.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/cuda/gemm.cuh>

namespace graft::cuda {

struct beside_job {
  int columns, rank;            // of Z and of Q, without padding
  bool by_column, waits, adds;  // D is [columns, rank], else [rank, columns]; Q is S; to what is there
  cells<float> factor, to;      // one number, or none
};
struct beside_maps {
  CUtensorMap z[2], q[2];
};
struct beside_args {
  beside_job job[2];
  int jobs, blocks;
};

template <int Rank> struct beside_ring {
  static constexpr int stages = 6, buffers = Rank > 32 ? 2 : 4;
  static constexpr int held = Rank > 32 ? 4 : 8;  // stages whose sums fit into the registers
  static constexpr std::uint32_t box = 128 * 128, stage = 2 * box, q = 128 * Rank * 2;
  static constexpr std::uint32_t q_at = stages * stage, barriers = q_at + buffers * q, bytes = barriers + 256 + 1024;
  static_assert(bytes <= shared_memory_limit && 16 * (stages + buffers) <= 256);
};

template <class T, int Rank> struct beside_block {
  using ring = beside_ring<Rank>;
  struct range {
    int from, to;  // in units of 128 columns
  };

  const beside_maps& maps;
  const beside_args& s;
  const gemm_args& g;
  std::uint32_t base;
  int block;

  __device__ std::uint32_t full(int i) const { return base + ring::barriers + 8 * i; }
  __device__ std::uint32_t empty(int i) const { return full(ring::stages + i); }
  __device__ std::uint32_t q_full(int i) const { return full(2 * ring::stages + i); }
  __device__ std::uint32_t q_empty(int i) const { return q_full(ring::buffers + i); }
  __device__ int token_blocks() const { return (g.m + 127) / 128; }
  __device__ range mine(const beside_job& j) const {
    const int units = (j.columns + 127) / 128;
    return {units * block / s.blocks, units * (block + 1) / s.blocks};
  }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < ring::stages; ++i) ptx::barrier_init(full(i), 1), ptx::barrier_init(empty(i), 2);
      for (int i = 0; i < ring::buffers; ++i) ptx::barrier_init(q_full(i), 1), ptx::barrier_init(q_empty(i), 2);
      ptx::barrier_init_fence();
    }
    __syncthreads();
    ptx::let_next_kernel_start();
  }
  __device__ void produce() const {
    int q = 0;
    std::uint32_t phase = 1;
    ptx::wait_for_previous_kernel();
    for (int k = 0; k < s.jobs; ++k) {
      const range own = mine(s.job[k]);
      const bool once = s.job[k].waits;  // the tiles read the other Z too
      for (int first = own.from; first < own.to; first += ring::held)
        for (int b = 0; b < token_blocks(); ++b)
          for (int u = first; u < first + ring::held && u < own.to; ++u) {
            const std::uint32_t to = base + q * ring::stage;
            ptx::barrier_wait(empty(q), phase);
            ptx::barrier_expect(full(q), ring::stage);
            if (once) {
              ptx::load_tile(to, &maps.z[k], u * 128, b * 128, full(q), ptx::evict_first);
              ptx::load_tile(to + ring::box, &maps.z[k], u * 128 + 64, b * 128, full(q), ptx::evict_first);
            } else {
              ptx::load_tile(to, &maps.z[k], u * 128, b * 128, full(q));
              ptx::load_tile(to + ring::box, &maps.z[k], u * 128 + 64, b * 128, full(q));
            }
            if (++q == ring::stages) q = 0, phase ^= 1;
          }
    }
  }
  // The rows of S of a token block are there; the last one who needs to know leaves the counters as they were.
  __device__ void await(int b, bool last) const {
    std::uint32_t* const published = g.counters + b * 4;
    while (ptx::load_acquire(published + 1) != static_cast<std::uint32_t>(g.owners)) __nanosleep(40);
    const auto users = static_cast<std::uint32_t>(g.n_tiles() + g.watchers);
    if (last && ptx::add_acquire_release(published + 2, 1) == users - 1) published[0] = published[1] = published[2] = 0;
    ptx::fence_async();
  }
  __device__ void fetch() const {
    int i = 0;
    std::uint32_t phase = 1;
    ptx::wait_for_previous_kernel();
    for (int k = 0; k < s.jobs; ++k) {
      const range own = mine(s.job[k]);
      // A block without columns waits as well: it is counted.
      for (int first = own.from; first < own.to || first == own.from; first += ring::held)
        for (int b = 0; b < token_blocks(); ++b) {
          if (s.job[k].waits) await(b, first + ring::held >= own.to);
          if (own.from == own.to) continue;
          ptx::barrier_wait(q_empty(i), phase);
          ptx::barrier_expect(q_full(i), ring::q);
          ptx::load_tile(base + ring::q_at + i * ring::q, &maps.q[k], 0, b * 128, q_full(i));
          if (++i == ring::buffers) i = 0, phase ^= 1;
        }
    }
  }
  __device__ __forceinline__ void write(const beside_job& j, const float (&acc)[ring::held][Rank / 2], int first,
                                        int units) const {
    const int group = static_cast<int>(threadIdx.x / 128) - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32);
    const float factor = j.factor.at != nullptr ? j.factor[0] : 1.0F;
    const int column = first * 128 + group * 64 + warp * 16 + lane / 4, rank = lane % 4 * 2;
    j.to.as_stored([&](const auto& to) {
#pragma unroll
      for (int u = 0; u < ring::held; ++u)
#pragma unroll
        for (int e = 0; e < Rank / 2; ++e) {
          const int c = column + u * 128 + 8 * ((e >> 1) & 1), r = rank + e / 4 * 8 + (e & 1);
          if (u >= units || c >= j.columns || r >= j.rank) continue;
          const long long at =
              j.by_column ? static_cast<long long>(c) * j.rank + r : static_cast<long long>(r) * j.columns + c;
          to.put(at, factor * acc[u][e] + (j.adds ? to[at] : 0.0F));
        }
    });
  }
  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x / 128) - 1;
    const bool leads = threadIdx.x % 128 == 0;
    int q = 0, i = 0;
    std::uint32_t phase = 0, q_phase = 0;
#pragma unroll 1
    for (int k = 0; k < s.jobs; ++k) {
      const range own = mine(s.job[k]);
#pragma unroll 1
      for (int first = own.from; first < own.to; first += ring::held) {
        const int units = own.to - first < ring::held ? own.to - first : ring::held;
        float acc[ring::held][Rank / 2];
#pragma unroll
        for (int u = 0; u < ring::held; ++u)
#pragma unroll
          for (int e = 0; e < Rank / 2; ++e) acc[u][e] = 0;
        int before = -1, q_before = -1;  // what the products in flight read
#pragma unroll 1
        for (int b = 0; b < token_blocks(); ++b) {
          ptx::barrier_wait(q_full(i), q_phase);
          const std::uint64_t right = across_descriptor(base + ring::q_at + i * ring::q, 0, 2 * Rank);
#pragma unroll
          for (int u = 0; u < ring::held; ++u)
            if (u < units) {
              ptx::barrier_wait(full(q), phase);
              const std::uint64_t left = across_descriptor(base + q * ring::stage + group * ring::box, 0);
              wgmma_fence();
#pragma unroll
              for (int kk = 0; kk < 8; ++kk)
                wgmma<T, Rank>::template shared<true, true>(acc[u], left + 128 * kk, right + 2 * Rank * kk, true);
              wgmma_commit();
              wgmma_wait<1>();
              if (leads && before >= 0) ptx::barrier_arrive(empty(before));
              if (leads && u == 0 && q_before >= 0) ptx::barrier_arrive(q_empty(q_before));
              before = q;
              if (++q == ring::stages) q = 0, phase ^= 1;
            }
          q_before = i;
          if (++i == ring::buffers) i = 0, q_phase ^= 1;
        }
        wgmma_wait<0>();
        if (leads && before >= 0) ptx::barrier_arrive(empty(before)), ptx::barrier_arrive(q_empty(q_before));
        write(s.job[k], acc, first, units);
      }
    }
  }
};

// dx with a weight that lies across, in tiles of 256 columns, and the sums beside it. No activation follows.
template <class T, int Rank>
__global__ void __launch_bounds__(384, 1)
    gemm_beside_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g,
                       const __grid_constant__ beside_maps sum_maps, const __grid_constant__ beside_args sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  // The sums take nearly as long as the tiles: their blocks come first, and are there when the kernel before ends.
  const int number = static_cast<int>(blockIdx.x);
  if (number >= sums.blocks) {
    run_tiles<T, 256, Rank, false, true, one_side<256, Rank>, false>(maps, g, base, number - sums.blocks,
                                                                     static_cast<int>(gridDim.x) - sums.blocks);
    return;
  }
  const beside_block<T, Rank> block{sum_maps, sums, g, base, number};
  block.start();
  if (threadIdx.x < 128) {
    ptx::give_registers<56>();
    if (threadIdx.x == 0)
      block.produce();
    else if (threadIdx.x == 32)
      block.fetch();
  } else {
    ptx::take_registers<224>();
    block.consume();
  }
#endif
}

}  // namespace graft::cuda
