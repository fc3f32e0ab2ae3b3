// SPDX-License-Identifier: Apache-2.0
// The kernels that a layer type compiles: what a product of its sizes runs best with on the devices of compute capability
// 9.0, those with 114 and with 132 multiprocessors. Others take the best of these.
#pragma once
#include <graft/backend/cuda/choose.h>

namespace graft::cuda {

inline constexpr target hopper_devices[] = {{.capability = 90, .processors = 114, .resident_pairs = 57},
                                            {.capability = 90, .processors = 132, .resident_pairs = 66}};

// Sizes are zero where the type does not state them; the rank is padded.
constexpr kernel_list kernels_for(int n, int k, int rank, bool pre, bool lies_across = false) {
  const bool known = n > 0 && k > 0;
  const int first = lies_across ? first_across : 0;
  kernel_list l;
  for (const int tile : {128, 256}) l.add_gemm(tile, first + (pre ? with_pre : rank <= 64 ? rank_index(rank) : 0));
  if (lies_across && pre) l.add_beside(0);
  if (lies_across && rank > 0) {  // where the blocks that share a side branch are not all resident
    for (const int tile : {128, 256}) l.add_gemm(tile, first);
    l.add_stream(padded_tokens(rank), any_shape, 0);
    if (rank <= 64) l.add_beside(rank);
  }
  if (n > 0 && n <= max_stream_tokens && rank == 0 && !pre && !lies_across)
    l.add_stream(padded_tokens(n), any_shape, 0);
  // Rows of y begin at no multiple of 16 bytes; a weight of another type is copied, and then does not lie across.
  if (n <= 0 || n % 8 != 0 || (lies_across && pre)) l.add_mma();
  l.add_gemm(128, 0);  // where the blocks that share a side branch are not all resident, and for the shrink before
  if (rank > 64 || (rank == 0 && n <= 2 * wide_rank)) l.add_by_parts();  // 0: not known
  if (rank > max_stream_rank || lies_across) return l;
  for (const int tokens : {8, 16, 64}) {
    if (pre || n % 2 != 0) l.add_stream(tokens, any_shape, rank);
    for (int shape = 0; shape < any_shape && !pre; ++shape) {
      if (stream_kernels[shape].rows + rank > 256) continue;
      bool best = !known;
      for (const target& on : hopper_devices)
        best = best || choose_stream(&n, 1, tokens, k, rank, on.processors).rows == stream_kernels[shape].rows;
      if (best) l.add_stream(tokens, shape, rank);
    }
  }
  // Where S is made by a launch of its own: the shrink, and the plain kernel after it.
  if (!known && rank > 0) l.add_stream(padded_tokens(rank), any_shape, 0), l.add_gemm(256, 0);
  for (int rows = 1; rows <= 40 && known && rank > 0; ++rows)  // of tiles; beyond, the same again
    for (const target& on : hopper_devices)
      if (const linear_choice c = choose({dtype::bf16, 256LL * rows, n, k, rank}, on); c.how == way::gemm_two)
        l.add_stream(padded_tokens(rank), any_shape, 0), l.add_gemm(c.tile_n, 0);
  return l;
}

}  // namespace graft::cuda
