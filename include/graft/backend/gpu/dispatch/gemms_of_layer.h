// SPDX-License-Identifier: Apache-2.0
// The GEMM kernels that a layer type compiles: those that dispatch chooses for its sizes on devices of compute
// capability 9.0 with 114 and with 132 multiprocessors (H100 PCIe and SXM, H200). Other devices choose among the same
// kernels.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>

namespace graft::gpu {

constexpr target hopper_device(int sm_count) {
  target t{.capability = 90, .sm_count = sm_count};
  t.can<gemm_launch>().resident_pairs = sm_count / 2;
  return t;
}
inline constexpr target hopper_devices[] = {hopper_device(114), hopper_device(132)};

// The sizes n and k are 0 if the type does not state them; the rank is padded.
constexpr gemm_kernel_mask gemm_kernels_for_layer(int n, int k, int rank, bool prologue, bool weight_is_nn = false) {
  const bool known = n > 0 && k > 0;
  const int first = weight_is_nn ? first_nn : 0;
  gemm_kernel_mask l;
  for (const int tile : {128, 256})
    l.add_gemm(tile, first + (prologue ? with_prologue : rank <= 64 ? rank_index(rank) : 0));
  if (weight_is_nn && prologue) l.add_fused_wgrad(0);
  if (weight_is_nn && rank > 0) {  // if the thread blocks that share the shrink are not all resident
    for (const int tile : {128, 256}) l.add_gemm(tile, first);
    l.add_skinny(padded_tokens(rank), fallback_shape, 0);
    if (rank <= 64) l.add_fused_wgrad(rank);
  }
  if (n > 0 && n <= max_skinny_tokens && rank == 0 && !prologue && !weight_is_nn)
    l.add_skinny(padded_tokens(n), fallback_shape, 0);
  // mma.sync kernels serve outputs that are no multiple of 8, and layers whose weight has another type: it is copied to
  // the NT layout.
  if (n <= 0 || n % 8 != 0 || (weight_is_nn && prologue)) l.add_mma();
  l.add_gemm(128, 0);  // if thread blocks that share the shrink are not all resident, and for a separate shrink launch
  if (rank > 64 || (rank == 0 && n <= 2 * wide_tile_rank)) l.add_split_k();  // n = 0: unknown
  if (rank > max_skinny_rank || weight_is_nn) return l;
  for (const int tokens : {8, 16, 64}) {
    if (prologue || n % 2 != 0) l.add_skinny(tokens, fallback_shape, rank);
    for (int shape = 0; shape < fallback_shape && !prologue; ++shape) {
      if (skinny_shapes[shape].rows + rank > 256) continue;
      bool best = !known;
      for (const target& on : hopper_devices)
        best = best || choose_skinny(&n, 1, tokens, k, rank, on.sm_count).rows == skinny_shapes[shape].rows;
      if (best) l.add_skinny(tokens, shape, rank);
    }
  }
  // A separate shrink launch needs a skinny GEMM for the shrink and a GEMM without a low-rank branch after it.
  if (!known && rank > 0) l.add_skinny(padded_tokens(rank), fallback_shape, 0), l.add_gemm(256, 0);
  for (int rows = 1; rows <= 40 && known && rank > 0; ++rows)  // rows of tiles; choices repeat above
    for (const target& on : hopper_devices)
      if (const gemm_choice c = choose({dtype::bf16, 256LL * rows, n, k, rank}, on);
          c.path == gemm_path::gemm_after_shrink)
        l.add_skinny(padded_tokens(rank), fallback_shape, 0), l.add_gemm(c.tile_n, 0);
  return l;
}

}  // namespace graft::gpu
