// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of wgrads. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/compiled_gemms.h>
#include <graft/backend/gpu/dispatch/gemm.h>

namespace graft::gpu {

// TMA needs row pitches that are multiples of 16 bytes; the saved shrink result of a branch of rank 4, for example, is
// padded.
constexpr bool operand_is_padded(long long columns, dtype type, const target& t) {
  return is_16_bit(type) && is_hopper(t) && columns % 8 != 0 && columns <= wide_tile_rank;
}
// Are the column-wise wgrads of a SwiGLU gate fused into its backward (kernels/wgrad/swiglu_column_scale.cuh)? Rows
// must consist of 16-byte vectors.
constexpr bool gate_wgrad_is_fused(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  return t.capability >= 90 && type == dtype::bf16 && g.sizes.value(g[i].d[3], s) % 8 == 0;
}
constexpr wgrad_sum::capabilities wgrad_capabilities() {
  return {.has_kernel = true, .runs_beside_gemm = true, .operand_is_padded = &operand_is_padded};
}

}  // namespace graft::gpu
