// SPDX-License-Identifier: Apache-2.0
// gemm with a rotation of its result on the way out: y = (x W) R for a block-diagonal R that stays within 32 columns, where W
// is read as it lies, and x may have a factor for each of its columns. It is dx of a layer that rotates its input, whose
// rotation would else be a pass over all of dx.
//
// The sums of 64 columns are rounded, as they would be in memory, and are then the left operand of one product more: what
// a thread has of the accumulators of 16 columns is what it has of a left operand. R lies in shared memory as a matrix of
// 32 columns, [out][32], in one more stage of the ring behind the last step of a tile. The result goes to other registers:
// products onto those that they read from would run one after the other.
#pragma once
#include <graft/backend/cuda/gemm.cuh>

namespace graft::cuda {

inline constexpr int turned_width = 32;

template <int TileN> struct turned_side : one_side<TileN, 0> { static constexpr bool turns = true; };

template <class T, int TileN, class Block> struct tile_turn {
  static constexpr bool turns = true;

  const Block& block;
  gemm_consumer& c;

  __device__ __forceinline__ void of(float (&turned)[2][16], const float (&acc)[TileN / 2], int chunk) const {
    if (chunk == 0) ptx::barrier_wait(block.full(c.q), c.phase);
    constexpr int pitch = 2 * turned_width;
    std::uint32_t left[4][4];
#pragma unroll
    for (int e = 0; e < 16; ++e) left[e / 4][e % 4] = pack<T>(acc[chunk * 32 + 2 * e], acc[chunk * 32 + 2 * e + 1]);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t rows = block.stage(c.q) + Block::shape::x + (2 * chunk + half) * turned_width * pitch;
#pragma unroll
      for (int kk = 0; kk < 2; ++kk)
        wgmma<T, 32>::registers(turned[half], left[2 * half + kk], tile_descriptor(rows, pitch) + 2 * kk, kk > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  // Behind a barrier of the warpgroup.
  __device__ __forceinline__ void was_read(int chunk) const {
    if (chunk + 1 != TileN / 64) return;
    block.release(c, c.q);
    if (++c.q == Block::shape::stages) c.q = 0, c.phase ^= 1;
  }
};

template <class T, bool Pre>
__global__ void __launch_bounds__(384, 1)
    gemm_turn_kernel(const __grid_constant__ gemm_maps maps, const __grid_constant__ gemm_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  run_tiles<T, 256, 0, Pre, true, turned_side<256>, false>(maps, g, (ptx::shared_address(raw) + 1023) & ~1023U,
                                                           static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
#endif
}

}  // namespace graft::cuda
