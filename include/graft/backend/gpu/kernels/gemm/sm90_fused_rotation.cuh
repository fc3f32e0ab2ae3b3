// SPDX-License-Identifier: Apache-2.0
// sm90 GEMM with an output rotation fused into the epilogue: y = (prologue(x) W) R, dx of a layer that rotates its
// input (OFT, BOFT).
//
//   x [m, k]    W [k, n] (NN)    y [m, n]    R [n, n] block-diagonal; no block crosses a multiple of 32 columns
//
// Kernel       The kernel of sm90.cuh with tiles of 256 columns and optional prologue, without branch and activation.
// Operand R    R is packed as [n][32] (row c: the 32 entries that make column c). It comes in one more pipeline stage
//              after the mainloop, in place of B.
// Epilogue     64 accumulator columns are rounded to T, as a store would round them, and become the A operand of wgmma
//              m64n32k16 in registers: the accumulator fragment of 16 columns has the layout of an A fragment. The
//              result goes to separate registers, because products that accumulate onto registers they read would be
//              serialized.
// Purpose      It saves a separate pass that reads and writes all of dx.
// Measured     H200, OFT with blocks of 32, 4096 x 4096, 4096 tokens: backward takes 1.21 of the bare dx, forward and
//              backward 1.17 of the bare pair (docs/performance.md).
#pragma once
#include <graft/backend/gpu/kernels/gemm/sm90.cuh>

namespace graft::gpu {

inline constexpr int rotation_tile_width = 32;

template <int TileN> struct rotation_loader : single_branch_loader<TileN, 0> { static constexpr bool rotates = true; };

template <class T, int TileN, class Block> struct tile_rotation {
  static constexpr bool rotates = true;

  const Block& block;
  gemm_consumer& c;

  __device__ __forceinline__ void of(float (&rotated_acc)[2][16], const float (&acc)[TileN / 2], int chunk) const {
    if (chunk == 0) block.ring().consumer_wait(c.at);
    constexpr int pitch = 2 * rotation_tile_width;
    std::uint32_t left[4][4];
#pragma unroll
    for (int e = 0; e < 16; ++e) left[e / 4][e % 4] = pack<T>(acc[chunk * 32 + 2 * e], acc[chunk * 32 + 2 * e + 1]);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t rows =
          block.stage(c.at.stage) + Block::shape::x + (2 * chunk + half) * rotation_tile_width * pitch;
#pragma unroll
      for (int kk = 0; kk < 2; ++kk)
        wgmma<T, 32>::registers(rotated_acc[half], left[2 * half + kk], tile_descriptor(rows, pitch) + 2 * kk, kk > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  // The last chunk releases the stage of R.
  __device__ __forceinline__ void release_chunk(int chunk, reads_done done) const {
    if (chunk + 1 != TileN / 64) return;
    block.release(c, c.at.stage, done);
    c.at.advance(Block::shape::stages);
  }
};

template <class T, bool Prologue>
__global__ void __launch_bounds__(384, 1)
    gemm_rotation_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  run_tiles<T, 256, 0, Prologue, true, rotation_loader<256>, false>(
      maps, g, (ptx::shared_address(raw) + 1023) & ~1023U, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
#endif
}

}  // namespace graft::gpu
