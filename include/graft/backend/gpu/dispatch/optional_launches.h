// SPDX-License-Identifier: Apache-2.0
// The set of optional launches of a plan as a bit mask, which says what a layer type compiles (launchers.cuh). `number`
// maps a dimension to its size, or 0 if it is unknown; then the set has what any size would need.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/backend/gpu/dispatch/precompute.h>
#include <graft/backend/gpu/dispatch/reduce_form.h>
#include <graft/backend/gpu/kernels/gemm/branch_sources.h>
#include <graft/derive/updated_weight.h>
#include <graft/plan/plan.h>

namespace graft::gpu {

using launch_mask = unsigned;
namespace launches {
inline constexpr launch_mask dropout_gemms = 1, chain = 2, columns = 4, expression = 8, two_expressions = 16,
                             gates = 32, precomputed_expression = 64, weight_shrink = 1 << 7, stack = 1 << 10,
                             sum = 1 << 11, quantized = 1 << 15, gather_norm = 1 << 16, odd_branches = 1 << 17,
                             fused_rotation = 1 << 18, pad = 1 << 19,
                             every = ~0U;  // weight_shrink: three bits by rank; sum: four bits by reduce form
constexpr launch_mask reduce_bits(unsigned forms) { return forms * sum; }
constexpr launch_mask shrink_bit(int rank) { return weight_shrink << (rank <= 16 ? 0 : rank <= 32 ? 1 : 2); }
}  // namespace launches

// Is the shrink result U = x Aᵀ of this GEMM, which the launch stores for others, an output of the graph?
constexpr bool outputs_shrink(const graph& g, const gemm_slots& s) {
  for (int k = 0; k < g.outs; ++k)
    if (shrink_output_of(s) >= 0 && unshaped(g, g.out[k].at) == shrink_output_of(s)) return true;
  return false;
}

// The launches of a call.
template <class Number> constexpr launch_mask launches_of(const graph& g, const plan& p, Number number) {
  launch_mask s = 0;
  for (const graft::launch& l : p.launches) {
    if (l.is<dropout_gemm>()) s |= launches::dropout_gemms;
    if (l.is<matrix_chain>()) s |= launches::chain;
    if (l.is<matrix_stack>()) s |= launches::stack;
    const expression_launch* const e = p.as<expression_launch>(l);
    if (e == nullptr) continue;
    s |= e->paired_root >= 0 ? launches::two_expressions : launches::expression;
    if (g[e->root].what == op::sum_to) s |= launches::reduce_bits(reduce_forms_of(g, e->root, number));
    if (e->gate_wgrads[0] >= 0) s |= launches::gates;
  }
  for (const wgrad_sum& t : p.all<wgrad_sum>()) {
    if (t.by_column) s |= launches::columns;
    for (const id i : {t.left, t.right})
      if (!t.by_column && is_call_input(g, i))
        if (const int columns = number(g[i].d[3]); columns == 0 || columns % 8 != 0) s |= launches::pad;
  }
  for (const gemm_slots& of : p.products) {
    if (!packs_plainly(g, of)) s |= launches::odd_branches;
    if (of.output_rotation >= 0) s |= launches::fused_rotation;
    if (outputs_shrink(g, of) || shrink_input_of(of) >= 0) s |= launches::pad;
    if (const updated_weight w = updated_weight_at(g, of.weight); w.found && !w.adds)
      s |= launches::precomputed_expression;
  }
  return s;
}
// The launches of binding and of a parameter change. An expression is counted if nodes can be joined to one.
template <class Number> constexpr launch_mask bind_launches(const graph& g, const stages& when, Number number) {
  launch_mask s = 0;
  const auto can_join = [&](id i) {
    return i >= 0 && when.of[i] == stage::parameter && graft::detail::is_elementwise_or_transpose(g[i].what);
  };
  for (id i = 0; i < g.size; ++i) {
    const bool sums = when.of[i] == stage::parameter && g[i].what == op::sum_to;
    for (int k = 0; k < 3; ++k)
      if ((sums || can_join(i)) && can_join(g[i].operand(k)))
        s |= launches::precomputed_expression | (sums ? launches::reduce_bits(reduce_forms_of(g, i, number)) : 0);
    if (when.of[i] == stage::call || !is_weight_shrink(g, i)) continue;
    const int rank = number(g[i].d[3]);
    s |= rank > 0 ? launches::shrink_bit(rank)
                  : launches::shrink_bit(16) | launches::shrink_bit(32) | launches::shrink_bit(64);
  }
  return s;
}

}  // namespace graft::gpu
