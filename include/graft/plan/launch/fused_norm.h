// SPDX-License-Identifier: Apache-2.0
// Fused RMS norm: a norm that only GEMMs read needs no launch, because it is a factor per column and one per token,
//     norm(h) Wᵀ = (h ⊙ gain) Wᵀ / rms(h)
// The GEMM that computes h stores h ⊙ gain and the sums for 1 / rms(h) in its epilogue, and the GEMMs that read the
// norm multiply their accumulators by 1 / rms(h). These are linear in x, so that low-rank branches and factors per
// output still apply. If the norm reads the graph's input, the GEMM that computes h is in the previous block's graph.
#pragma once
#include <graft/plan/launch/gemm_problem.h>
#include <graft/plan/launch/rowwise.h>

namespace graft {

struct gemm_launch;

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

// True where rowwise launch `norm` is fused into the kernel of the GEMM `before` and into those of all its readers.
template <class Plan>
constexpr bool fuses_norm(const gemm_problem& before, const graph& g, const Plan& p, int norm, const size_values& s,
                          const quant_format& stored) {
  const auto& fused = p.to.template can<gemm_launch>().norm_is_fused;
  if (norm < 0 || !fused) return false;
  sequence<gemm_problem> norm_readers;
  for (const gemm_slots& reader : p.products)
    if (reader.x == p.template all<rowwise_launch>()[norm].result)
      norm_readers.push(shape_of(g, reader, s, before.type, stored));
  return fused(before, norm_readers.begin(), norm_readers.size(), p.to);
}
// True for a look-up of whole rows in an unsharded table.
constexpr bool gathers_rows(const node& v) { return v.what == op::gather && !v.ta && !is_shard(v); }
// True where the norm that g begins with is fused into the graph `previous`, whose first output is the input of g.
template <class Plan>
constexpr bool fuses_input_norm(const graph& previous, const Plan& its, const size_values& its_sizes, const graph& g,
                                const Plan& p, const size_values& s, dtype type,
                                const quant_format& stored_previous = {}, const quant_format& stored = {}) {
  for (const gemm_slots& last : its.products)
    if (last.result == previous.out[0].at)
      return fuses_norm(shape_of(previous, last, its_sizes, type, stored_previous), g, p, p.input_norm, s, stored);
  if (!gathers_rows(previous[previous.out[0].at]) || !stored_previous.plain() || p.input_norm < 0) return false;
  for (const gemm_slots& reader : p.products) {  // a look-up must meet the conditions of a GEMM of its width
    if (reader.x != p.template all<rowwise_launch>()[p.input_norm].result) continue;
    gemm_problem as_wide = shape_of(g, reader, s, type, stored);
    as_wide.n = static_cast<int>(g.sizes.value(g[reader.x].d[3], s));
    return fuses_norm(as_wide, g, p, p.input_norm, s, stored);
  }
  return false;
}

}  // namespace graft
