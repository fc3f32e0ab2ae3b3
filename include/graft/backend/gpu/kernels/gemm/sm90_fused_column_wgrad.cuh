// SPDX-License-Identifier: Apache-2.0
// Fused column-wise wgrad, sm_90a: d = Σ Z ⊙ Q over the tokens, the gradient of a factor per column (IA3), computed in
// the launch of dx = (dy ⊙ factor) W by CTAs on the SMs that its tiles leave idle.
//
//   Z, Q [tokens, columns]    d [columns]
//
// Work split   The first `blocks` CTAs of the grid own ranges of columns over all tokens, in units of 64; the
//              others run the GEMM tiles of sm90.cuh.
// Warp roles   Thread 0: producer, 6 stages of 128 tokens x 64 columns of Z and Q. Warps 4 to 11: each thread
//              multiplies 8 neighboring columns of every 32nd token.
// Pipeline     A stage is released by one lane of each warp, with its words as register reads, before they are
//              multiplied.
// Reduction    After a unit: over lanes, then over the 8 warps in their order. No atomics: bitwise deterministic.
// Measured     62 bytes per clock, which is what one SM can load: 67 MB take as many clocks as the tiles of
//              a 4096 x 4096 x 4096 product.
#pragma once
#include <graft/backend/gpu/kernels/gemm/sm90_fused_rotation.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_fused_wgrad.cuh>

namespace graft::gpu {

struct column_wgrad_ring {
  static constexpr int stages = 6, columns = 64, warps = 8;
  static constexpr std::uint32_t box = 128 * 128, stage = 2 * box, sums = stages * stage,
                                 barriers = sums + warps * columns * 4, bytes = barriers + 256 + 1024;
  static_assert(bytes <= shared_memory_limit && 16 * stages <= 256);
};

template <class T> struct column_wgrad_block {
  using ring = column_wgrad_ring;

  const fused_wgrad_maps& maps;
  const fused_wgrad_args& s;
  int tokens;
  std::uint8_t* memory;  // generic pointer to the shared memory at `base`
  std::uint32_t base;
  int block;

  __device__ pipeline stages() const { return {base + ring::barriers, ring::stages}; }
  __device__ int token_blocks() const { return (tokens + 127) / 128; }
  __device__ int units() const { return (s.job[0].columns + ring::columns - 1) / ring::columns; }
  __device__ int first() const { return units() * block / s.blocks; }
  __device__ int last() const { return units() * (block + 1) / s.blocks; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < ring::stages; ++i) stages().init(i, 1, ring::warps);
      ptx::barrier_init_fence();
    }
    __syncthreads();
    ptx::launch_dependents();
  }
  __device__ void produce() const {
    pipeline_state at = pipeline_state::producer();
    ptx::wait_for_dependency();
    for (int u = first(); u < last(); ++u)
      for (int b = 0; b < token_blocks(); ++b) {
        const std::uint32_t to = base + at.stage * ring::stage;
        stages().producer_acquire(at);
        const std::uint32_t full = stages().producer_commit(at.stage, ring::stage);
        ptx::load_tile(to, &maps.z[0], u * ring::columns, b * 128, full);  // the GEMM tiles read Z too
        ptx::load_tile(to + ring::box, &maps.q[0], u * ring::columns, b * 128, full, ptx::evict_first);
        at.advance(ring::stages);
      }
  }
  // Reduces the sums of a unit over the lanes of each warp, then over the warps in their order, and stores them.
  __device__ void write(int unit, int thread, float (&acc)[8]) const {
    float* const sums = reinterpret_cast<float*>(memory + ring::sums);
    const int warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      acc[e] += __shfl_xor_sync(0xffffffffU, acc[e], 8);
      acc[e] += __shfl_xor_sync(0xffffffffU, acc[e], 16);
      if (lane < 8) sums[warp * ring::columns + lane * 8 + e] = acc[e];
    }
    ptx::named_barrier(1, 256);
    const fused_wgrad_job& j = s.job[0];
    const int column = unit * ring::columns + thread;
    if (thread < ring::columns && column < j.columns) {
      float sum = 0;
      for (int w = 0; w < ring::warps; ++w) sum += sums[w * ring::columns + thread];
      j.to.put(column, sum + (j.adds ? j.to[column] : 0.0F));
    }
    ptx::named_barrier(1, 256);  // the next unit overwrites `sums`
  }
  __device__ void consume() const {
    const int thread = static_cast<int>(threadIdx.x) - 128, eight = thread % 8, row0 = thread / 8;
    pipeline_state at;
#pragma unroll 1
    for (int u = first(); u < last(); ++u) {
      float acc[8] = {};
#pragma unroll 1
      for (int b = 0; b < token_blocks(); ++b) {
        stages().consumer_wait(at);
        const std::uint8_t* const from = memory + at.stage * ring::stage;
        uint4 z[4], w[4];
        register_reads reads(s.blocks);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = row0 + 32 * i, offset = row * 128 + ((eight ^ (row & 7)) << 4);
          z[i] = *reinterpret_cast<const uint4*>(from + offset),
          w[i] = *reinterpret_cast<const uint4*>(from + ring::box + offset);
          reads.add(z[i].w), reads.add(w[i].w);
        }
        __syncwarp();
        if (thread % 32 == 0) reads.release(stages(), at.stage);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const T *x = reinterpret_cast<const T*>(&z[i]), *y = reinterpret_cast<const T*>(&w[i]);
#pragma unroll
          for (int e = 0; e < 8; ++e) acc[e] = fmaf(to_float(x[e]), to_float(y[e]), acc[e]);
        }
        at.advance(ring::stages);
      }
      write(u, thread, acc);
    }
  }
};

// Rotates: with the output rotation of sm90_fused_rotation.cuh (BOFT).
template <class T, bool Rotates>
__global__ void __launch_bounds__(384, 1)
    gemm_fused_column_wgrad_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g,
                                   const __grid_constant__ fused_wgrad_maps wgrad_maps,
                                   const __grid_constant__ fused_wgrad_args sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const int number = static_cast<int>(blockIdx.x);
  if (number >= sums.blocks) {
    using branch_loader = std::conditional_t<Rotates, rotation_loader<256>, single_branch_loader<256, 0>>;
    run_tiles<T, 256, 0, true, true, branch_loader, false>(maps, g, base, number - sums.blocks,
                                                           static_cast<int>(gridDim.x) - sums.blocks);
    return;
  }
  const column_wgrad_block<T> block{wgrad_maps, sums, g.m, raw + (base - at), base, number};
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
