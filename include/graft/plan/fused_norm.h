// SPDX-License-Identifier: Apache-2.0
// Fused RMS norm: a norm that only GEMMs read needs no launch, because it is a factor per column and one per token,
//     norm(h) Wᵀ = (h ⊙ gain) Wᵀ / rms(h)
// The GEMM that computes h stores h ⊙ gain and the sums for 1 / rms(h) in its epilogue, and the GEMMs that read the
// norm multiply their accumulators by 1 / rms(h). These are linear in x, so that low-rank branches and factors per
// output still apply. If the norm reads the graph's input, the GEMM that computes h is in the previous block's graph.
#pragma once
#include <graft/plan/gemm.h>
#include <graft/plan/rowwise.h>

namespace graft {

// True for a GEMM whose epilogue can compute the norm of its result, and whose x can be such a norm.
constexpr bool can_fuse_norm(const gemm_slots& p) {
  return p.pre_epilogue < 0 && !exposes_shrink(p) && p.weight_is_nt && p.prologue < 0;
}
// True for an RMS norm with gain all of whose readers are such GEMMs.
[[gnu::cold]] constexpr bool only_products_read(const graph& g, const rowwise_launch& r, const sequence<int>& readers,
                                                const sequence<gemm_slots>& products) {
  if (r.norm < 0 || r.grad_output >= 0 || g[r.norm].k[0] != dim{1} || !detail::one_matrix(g[r.result])) return false;
  int reads = 0;
  for (const gemm_slots& p : products) {
    if (p.x != r.result) continue;
    if (!can_fuse_norm(p)) return false;
    reads += 1 + p.branches.size();
  }
  return reads > 0 && reads == readers[r.result];
}

}  // namespace graft
