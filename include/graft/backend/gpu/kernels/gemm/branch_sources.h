// SPDX-License-Identifier: Apache-2.0
// Sources of a low-rank branch: which graph values packing reads for A and B, each possibly times a scalar.
#pragma once
#include <graft/derive/traversal.h>
#include <graft/plan/launch/gemm_slots.h>

namespace graft::gpu {

// A value, and the scalar that packing multiplies it with; factor -1: none.
struct scaled_source {
  id value, factor;
};
constexpr scaled_source scaled_value(const graph& g, id i, id factor) {
  if (i < 0 || factor >= 0 || g[i].what != op::mul) return {i, factor};
  const graft::node& v = g[i];
  if (is_scalar(g[v.a]) && same_shape(g[v.b], v)) return {v.b, v.a};
  if (is_scalar(g[v.b]) && same_shape(g[v.a], v)) return {v.a, v.b};
  return {i, factor};
}
constexpr bool of_adapter(const graph& g, const scaled_source& s) { return s.value < 0 || base_leaf(g, s.value) < 0; }
// Returns true if A and B of every branch are values of the adapter. Then one launch packs the branches of several
// GEMMs.
constexpr bool packs_plainly(const graph& g, const gemm_slots& s) {
  bool plain = true;
  for (const low_rank_branch& branch : s.branches)
    plain = plain && (branch.a >= 0 || !branch.computes_shrink) && (branch.b >= 0 || !branch.expands) &&
            of_adapter(g, scaled_value(g, branch.a, none_id)) &&
            of_adapter(g, scaled_value(g, branch.b, branch.factor));
  return plain;
}
// The shrink result U = x Aᵀ that an earlier launch computed from x with dropout; -1: none.
constexpr id shrink_input_of(const gemm_slots& s) {
  return !s.branches.empty() && !s.branches[0].computes_shrink ? s.branches[0].s : none_id;
}
// The shrink result U = x Aᵀ that this launch stores for other launches; -1: none.
constexpr id shrink_output_of(const gemm_slots& s) {
  return !s.branches.empty() && s.branches[0].stores_shrink ? s.branches[0].s : none_id;
}

}  // namespace graft::gpu
