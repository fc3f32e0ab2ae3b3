// SPDX-License-Identifier: Apache-2.0
// Launches that only some plans have, as a set, and the set of a plan: what a layer type compiles (launchers.cuh). `number`
// gives sizes, 0 where they are not known; then what any size would want is in the set.
#pragma once
#include <graft/backend/cuda/attention_choice.h>
#include <graft/backend/cuda/known_values.h>
#include <graft/backend/cuda/side_sources.h>
#include <graft/backend/cuda/sum_form.h>
#include <graft/derive/grown_weight.h>
#include <graft/plan/plan.h>

namespace graft::cuda {

using launch_set = unsigned;
namespace launches {
inline constexpr launch_set dropped = 1, chain = 2, columns = 4, expression = 8, two_expressions = 16, gates = 32,
                            known_expression = 64, weight_shrink = 1 << 7, stack = 1 << 10, sum = 1 << 11,
                            codes = 1 << 15, look_up = 1 << 16, sides = 1 << 17, turn = 1 << 18, pad = 1 << 19,
                            every = ~0U;  // weight_shrink: three by rank; sum: four by form
constexpr launch_set sums_of(unsigned forms) { return forms * sum; }
constexpr launch_set shrink_of(int rank) { return weight_shrink << (rank <= 16 ? 0 : rank <= 32 ? 1 : 2); }
}  // namespace launches

// Does S, which the launch stores for others, lie in memory of the caller?
constexpr bool gives_side(const graph& g, const product_slots& s) {
  for (int k = 0; k < g.outs; ++k)
    if (kept_side_of(s) >= 0 && unshaped(g, g.out[k].at) == kept_side_of(s)) return true;
  return false;
}

// What a call launches.
template <class Number> constexpr launch_set launches_of(const graph& g, const plan& p, Number number) {
  launch_set s = 0;
  for (const graft::launch& l : p.launches) {
    if (l.dropped >= 0) s |= launches::dropped;
    if (l.chained >= 0) s |= launches::chain;
    if (l.stack >= 0) s |= launches::stack;
    const bool other = l.product >= 0 || l.sum >= 0 || l.dropped >= 0 || l.chained >= 0 || l.stack >= 0 || l.rows >= 0;
    if (!other && l.count > 1 && !is_attention(g[l.anchor].what)) {
      s |= l.also >= 0 ? launches::two_expressions : launches::expression;
      if (g[l.anchor].what == op::sum_to) s |= launches::sums_of(forms_of_sum(g, l.anchor, number));
    }
    if (l.summed[0] >= 0) s |= launches::gates;
  }
  for (const token_sum& t : p.sums) {
    if (t.by_column) s |= launches::columns;
    for (const id i : {t.left, t.right})
      if (!t.by_column && is_brought_operand(g, i))
        if (const int columns = number(g[i].d[3]); columns == 0 || columns % 8 != 0) s |= launches::pad;
  }
  for (const product_slots& of : p.products) {
    if (!packs_plainly(g, of)) s |= launches::sides;
    if (of.turned >= 0) s |= launches::turn;
    if (gives_side(g, of) || given_side_of(of) >= 0) s |= launches::pad;
    if (const grown_weight w = grown_at(g, of.weight); w.found && !w.adds) s |= launches::known_expression;
  }
  return s;
}
// What binding launches, and a step of training behind it. Of expressions: what may be joined.
template <class Number> constexpr launch_set launches_before(const graph& g, const stages& when, Number number) {
  launch_set s = 0;
  const auto joins = [&](id i) {
    return i >= 0 && when.of[i] == stage::parameter && graft::detail::by_element(g[i].what);
  };
  for (id i = 0; i < g.size; ++i) {
    const bool sums = when.of[i] == stage::parameter && g[i].what == op::sum_to;
    for (int k = 0; k < 3; ++k)
      if ((sums || joins(i)) && joins(g[i].operand(k)))
        s |= launches::known_expression | (sums ? launches::sums_of(forms_of_sum(g, i, number)) : 0);
    if (when.of[i] == stage::data || !meets_weight(g, i)) continue;
    const int rank = number(g[i].d[3]);
    s |= rank > 0 ? launches::shrink_of(rank)
                  : launches::shrink_of(16) | launches::shrink_of(32) | launches::shrink_of(64);
  }
  return s;
}

}  // namespace graft::cuda
