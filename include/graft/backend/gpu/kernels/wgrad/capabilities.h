// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of wgrads. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/kernel_selection.h>
#include <graft/backend/gpu/tile/adapter_args.h>

namespace graft::gpu {

// TMA needs row pitches that are multiples of 16 bytes; the saved shrink result of a branch of rank 4, for example, is
// padded.
constexpr bool operand_is_padded(long long columns, dtype type, const target& t) {
  return is_16_bit(type) && is_hopper(t) && columns % 8 != 0 && columns <= wide_tile_rank;
}
// Returns true if the column-wise wgrads of a SwiGLU gate are fused into its backward
// (kernels/wgrad/swiglu_column_scale.cuh). Rows must consist of 16-byte vectors.
constexpr bool gate_wgrad_is_fused(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  return t.capability >= 90 && type == dtype::bf16 && g.sizes.value(g[i].d[3], s) % 8 == 0;
}
constexpr wgrad_launch::capabilities wgrad_capabilities() {
  return {.has_kernel = true, .fuses_into_dgrad = true, .operand_is_padded = &operand_is_padded};
}
template <> struct kernels_of_launch<wgrad_launch> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const wgrad_launch& s) {
    const graph& g = in.g;
    if (s.scaled >= 0) to.nodes = to.nodes | op_bit(g[s.scaled].what);
    if (s.by_column) {
      to.launches |= launches::columns;
      return;
    }
    const int left = in.size(g[s.left].d[3]), right = in.size(g[s.right].d[3]), least = left < right ? left : right;
    for (const int rank : {16, 32, 64})
      if (least == 0 || (least <= 64 && padded_rank(least) == rank)) to.gemms.add_wgrad(rank);
    if (least == 0 || least > 64) to.gemms.add_wgrad(wide_tile_rank);
    for (const id i : {s.left, s.right})
      if (const int columns = in.size(g[i].d[3]); is_call_input(g, i) && (columns == 0 || columns % 8 != 0))
        to.launches |= launches::pad;
  }
};

}  // namespace graft::gpu
