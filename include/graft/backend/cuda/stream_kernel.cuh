// SPDX-License-Identifier: Apache-2.0
// stream.cuh as a kernel: a block finds its tile, its layer and its part of the inner axis, and its warps their work.
#pragma once
#include <graft/backend/cuda/stream_pre.cuh>

namespace graft::cuda {

template <class T, int Tokens, int Rows, int Splits, int Rank, bool Any>
__global__ void __launch_bounds__(stream_block<T, Tokens, Rows, Splits, Rank, Any>::launched)
    stream_kernel(const __grid_constant__ stream_maps maps, const __grid_constant__ stream_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const int tile = static_cast<int>(blockIdx.y), split = static_cast<int>(blockIdx.x);
  const int s =
      (tile >= g.first_tile[1] ? 1 : 0) + (tile >= g.first_tile[2] ? 1 : 0) + (tile >= g.first_tile[3] ? 1 : 0);
  using kernel = stream_block<T, Tokens, Rows, Splits, Rank, Any>;
  const kernel block{maps,
                     g,
                     g.segment[s],
                     maps.w[s],
                     maps.x[s],
                     (ptx::shared_address(raw) + 1023) & ~1023U,
                     (tile - g.first_tile[s]) * (g.gated ? Rows / 2 : Rows),
                     split,
                     g.k_steps * split / Splits,
                     g.k_steps * (split + 1) / Splits};
  block.start();
  if (threadIdx.x < 128)
    block.consume();
  else if (threadIdx.x == 128)
    block.request_w();
  else if (threadIdx.x == 160)
    block.request_x();
  else if (Rank > 0 && threadIdx.x == 192)
    block.request_adapter();
  else if (block.pre() != nullptr && threadIdx.x >= 192)
    scale_input<T, Tokens>(block);
  else if (block.norms && threadIdx.x >= block.threads && g.ahead.squares != nullptr)
    find_token_factors<Tokens>(g.ahead, g.m, g.k_steps * 64, block.token_factors());
  if constexpr (kernel::enders > 128)
    if (threadIdx.x >= 128 && g.gated) {
      __syncwarp();
      finish_gated<T, Tokens>(block);
    }
#endif
}

}  // namespace graft::cuda
