// SPDX-License-Identifier: Apache-2.0
// Fused wgrad, sm_90a: D = factor · Zᵀ Q, the gradients of A and B of a low-rank branch, computed in the dgrad launch
// by CTAs on the SMs that its tiles leave idle (4 of 132 with 4096 tokens and 4096 columns).
//
//   Z [tokens, columns], the wide operand    Q [tokens, rank], which may be the shrink result U of the same launch
//   D [columns, rank] or [rank, columns]; up to two such jobs
//
// Work split   The first `blocks` CTAs of the grid run wgrads, the others the GEMM tiles of sm90.cuh. A wgrad
//              block owns a range of columns of Z over all tokens, in units of 128.
// Warp roles   Thread 0: producer of Z, 6 stages of 128 tokens x 128 columns. Thread 32: producer of Q, buffers of 128
//              tokens x Rank. Warpgroups 1 and 2: consumers of 64 columns each, wgmma m64nRank with both operands
//              MN-major, as they are stored.
// Pipeline     Two rings: Z, a stage per unit of 128 columns, and Q, a stage per 128 tokens. Both are released by one
//              thread of each warpgroup when the next group of products is in flight.
// Phases       A job passes over all tokens once per units_per_pass units, whose accumulators stay in registers. Where Q is U,
//              the Q producer waits per 128 tokens until all owner tiles have stored U (gemm_args::counters).
// Reduction    Nothing is added between blocks and no atomics are used: results are bitwise deterministic.
// Measured     A LoRA training step of one layer takes one launch per direction and 1.05 of the bare pair of products
//              (H200, 4096 x 4096, 4096 tokens; docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/gemm/sm90.cuh>
#include <graft/backend/gpu/tile/elements.cuh>

namespace graft::gpu {

struct fused_wgrad_job {
  int columns, rank;                       // columns of Z and of Q, without padding
  bool by_column, waits_for_shrink, adds;  // D is [columns, rank], else [rank, columns]; Q is U; D is added to `to`
  element_ptr<float> factor, to;           // factor: one number, or null
};
struct fused_wgrad_maps {
  CUtensorMap z[2], q[2];
};
struct fused_wgrad_args {
  fused_wgrad_job job[2];
  int jobs, blocks;
};

template <int Rank> struct fused_wgrad_ring {
  static constexpr int stages = 6, buffers = Rank > 32 ? 2 : 4;
  static constexpr int units_per_pass =
      Rank > 32 ? 4 : 8;  // units of 128 columns whose accumulators fit into registers
  static constexpr std::uint32_t box = 128 * 128, stage = 2 * box, q = 128 * Rank * 2;
  static constexpr std::uint32_t q_at = stages * stage, barriers = q_at + buffers * q, bytes = barriers + 256 + 1024;
  static_assert(bytes <= shared_memory_limit && 16 * (stages + buffers) <= 256);
};

template <class T, int Rank> struct fused_wgrad_block {
  using ring = fused_wgrad_ring<Rank>;
  struct range {
    int from, to;  // units of 128 columns of Z
  };

  const fused_wgrad_maps& maps;
  const fused_wgrad_args& s;
  const gemm_args& g;
  std::uint32_t base;
  int block;

  __device__ pipeline z_ring() const { return {base + ring::barriers, ring::stages}; }
  __device__ pipeline q_ring() const { return {base + ring::barriers + pipeline::bytes(ring::stages), ring::buffers}; }
  __device__ int token_blocks() const { return (g.m + 127) / 128; }
  __device__ range mine(const fused_wgrad_job& j) const {
    const int units = (j.columns + 127) / 128;
    return {units * block / s.blocks, units * (block + 1) / s.blocks};
  }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < ring::stages; ++i) z_ring().init(i, 1, 2);
      for (int i = 0; i < ring::buffers; ++i) q_ring().init(i, 1, 2);
      ptx::barrier_init_fence();
    }
    __syncthreads();
    ptx::launch_dependents();
  }
  __device__ void produce() const {
    pipeline_state at = pipeline_state::producer();
    ptx::wait_for_dependency();
    for (int k = 0; k < s.jobs; ++k) {
      const range own = mine(s.job[k]);
      const bool once = s.job[k].waits_for_shrink;  // the other job's Z is also read by the GEMM tiles: keep it in L2
      for (int first = own.from; first < own.to; first += ring::units_per_pass)
        for (int b = 0; b < token_blocks(); ++b)
          for (int u = first; u < first + ring::units_per_pass && u < own.to; ++u) {
            const std::uint32_t to = base + at.stage * ring::stage;
            z_ring().producer_acquire(at);
            const std::uint32_t full = z_ring().producer_commit(at.stage, ring::stage);
            if (once) {
              ptx::load_tile(to, &maps.z[k], u * 128, b * 128, full, ptx::evict_first);
              ptx::load_tile(to + ring::box, &maps.z[k], u * 128 + 64, b * 128, full, ptx::evict_first);
            } else {
              ptx::load_tile(to, &maps.z[k], u * 128, b * 128, full);
              ptx::load_tile(to + ring::box, &maps.z[k], u * 128 + 64, b * 128, full);
            }
            at.advance(ring::stages);
          }
    }
  }
  // Waits until the tiles have stored U for 128 tokens. The last user of the counters resets them to zero.
  __device__ void wait_for_shrink(int b, bool last) const {
    std::uint32_t* const published = g.counters + b * 4;
    arrival_counter{published + 1}.wait_for<40>(g.owners);
    const auto users = static_cast<std::uint32_t>(g.n_tiles() + g.waiting_wgrad_blocks);
    if (last && arrival_counter{published + 2}.arrive_last(users)) published[0] = published[1] = published[2] = 0;
    ptx::fence_async();
  }
  __device__ void fetch() const {
    pipeline_state at = pipeline_state::producer();
    ptx::wait_for_dependency();
    for (int k = 0; k < s.jobs; ++k) {
      const range own = mine(s.job[k]);
      // A block without columns waits as well, because the counters expect every waiting block.
      for (int first = own.from; first < own.to || first == own.from; first += ring::units_per_pass)
        for (int b = 0; b < token_blocks(); ++b) {
          if (s.job[k].waits_for_shrink) wait_for_shrink(b, first + ring::units_per_pass >= own.to);
          if (own.from == own.to) continue;
          q_ring().producer_acquire(at);
          ptx::load_tile(base + ring::q_at + at.stage * ring::q, &maps.q[k], 0, b * 128,
                         q_ring().producer_commit(at.stage, ring::q));
          at.advance(ring::buffers);
        }
    }
  }
  __device__ __forceinline__ void write(const fused_wgrad_job& j, const float (&acc)[ring::units_per_pass][Rank / 2],
                                        int first, int units) const {
    const int group = static_cast<int>(threadIdx.x / 128) - 1, warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32);
    const float factor = j.factor.at != nullptr ? j.factor[0] : 1.0F;
    const int column = first * 128 + group * 64 + warp * 16 + lane / 4, rank = lane % 4 * 2;
    j.to.as_stored([&](const auto& to) {
#pragma unroll
      for (int u = 0; u < ring::units_per_pass; ++u)
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
    const bool is_leader = threadIdx.x % 128 == 0;
    wgmma_pipeline_state z;
    pipeline_state q;
#pragma unroll 1
    for (int k = 0; k < s.jobs; ++k) {
      const range own = mine(s.job[k]);
#pragma unroll 1
      for (int first = own.from; first < own.to; first += ring::units_per_pass) {
        const int units = own.to - first < ring::units_per_pass ? own.to - first : ring::units_per_pass;
        float acc[ring::units_per_pass][Rank / 2];
#pragma unroll
        for (int u = 0; u < ring::units_per_pass; ++u)
#pragma unroll
          for (int e = 0; e < Rank / 2; ++e) acc[u][e] = 0;
        int q_before = -1;  // Q buffer of the 128 tokens before
        z.in_flight = -1;
#pragma unroll 1
        for (int b = 0; b < token_blocks(); ++b) {
          q_ring().consumer_wait(q);
          const std::uint64_t right = mn_major_descriptor(base + ring::q_at + q.stage * ring::q, 0, 2 * Rank);
#pragma unroll
          for (int u = 0; u < ring::units_per_pass; ++u)
            if (u < units) {
              z_ring().consumer_wait(z);
              const std::uint64_t left = mn_major_descriptor(base + z.stage * ring::stage + group * ring::box, 0);
              wgmma_fence();
#pragma unroll
              for (int kk = 0; kk < 8; ++kk)
                wgmma<T, Rank>::template shared<true, true>(acc[u], left + 128 * kk, right + 2 * Rank * kk, true);
              const reads_done done = z.commit(ring::stages, is_leader, [&](int before, reads_done read) {
                z_ring().consumer_release(before, read);
              });
              if (is_leader && u == 0 && q_before >= 0) q_ring().consumer_release(q_before, done);
            }
          q_before = q.stage;
          q.advance(ring::buffers);
        }
        const reads_done done = products_done<0>();
        if (is_leader) z_ring().consumer_release(z.in_flight, done), q_ring().consumer_release(q_before, done);
        write(s.job[k], acc, first, units);
      }
    }
  }
};

// dx = dy W (NN weight) in tiles of 256 columns without activation, and the fused wgrads.
template <class T, int Rank>
__global__ void __launch_bounds__(384, 1)
    gemm_fused_wgrad_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g,
                            const __grid_constant__ fused_wgrad_maps wgrad_maps,
                            const __grid_constant__ fused_wgrad_args sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t base = (ptx::shared_address(raw) + 1023) & ~1023U;
  // Wgrads take nearly as long as the tiles. Their blocks have the lowest indices, so that they are resident when the
  // preceding kernel ends.
  const int number = static_cast<int>(blockIdx.x);
  if (number >= sums.blocks) {
    run_tiles<T, 256, Rank, false, true, single_branch_loader<256, Rank>, false>(
        maps, g, base, number - sums.blocks, static_cast<int>(gridDim.x) - sums.blocks);
    return;
  }
  const fused_wgrad_block<T, Rank> block{wgrad_maps, sums, g, base, number};
  block.start();
  if (threadIdx.x < 128) {
    ptx::dealloc_registers<56>();
    if (threadIdx.x == 0)
      block.produce();
    else if (threadIdx.x == 32)
      block.fetch();
  } else {
    ptx::alloc_registers<224>();
    block.consume();
  }
#endif
}

}  // namespace graft::gpu
