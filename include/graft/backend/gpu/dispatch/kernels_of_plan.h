// SPDX-License-Identifier: Apache-2.0
// The kernels of a plan: a fold over its launches, and over the values that it precomputes.
#pragma once
#include <graft/backend/gpu/dispatch/precompute.h>
#include <graft/backend/gpu/dispatch/targets.h>

namespace graft::gpu {

// Precomputed values run as kernels of their own, as expressions where nodes can be joined to one, and as the shrink of
// a stored weight.
constexpr void add_precomputed(kernel_selection& to, const type_plan& in) {
  const graph& g = in.g;
  const stages& when = in.p.when;
  const auto can_join = [&](id i) {
    return i >= 0 && when.of[i] == stage::parameter && graft::detail::is_elementwise_or_transpose(g[i].what);
  };
  for (id i = 0; i < g.size; ++i) {
    if (when.of[i] == stage::call) continue;
    to.nodes = to.nodes | op_bit(g[i].what);
    const bool sums = when.of[i] == stage::parameter && g[i].what == op::sum_to;
    for (int k = 0; k < 3; ++k)
      if ((sums || can_join(i)) && can_join(g[i].operand(k)))
        to.launches |= launches::precomputed_expression |
                       (sums ? launches::reduce_bits(reduce_forms_of(g, i, [&](dim d) { return in.size(d); })) : 0);
    if (is_weight_shrink(g, i)) to.launches |= launches::shrink_bit(in.size(g[i].d[3]));
  }
}
constexpr kernel_selection kernels_of_plan(const type_plan& in) {
  kernel_selection all;
  for (const graft::launch& l : in.p.launches) {
    in.p.visit(l, [&]<class Kind>(const Kind& one) { kernels_of_launch<Kind>::add(all, in, one); });
    in.p.each_wgrad(l, [&](int k) { kernels_of_launch<wgrad_launch>::add(all, in, in.p.all<wgrad_launch>()[k]); });
  }
  add_precomputed(all, in);
  if (!in.stored.plain()) all.launches |= launches::quantized;
  return all;
}
// Eager mode, merging and unmerging run every node as a kernel of its own.
constexpr kernel_selection kernels_by_nodes(const graph& g) { return {.nodes = ops_of(g)}; }

}  // namespace graft::gpu
