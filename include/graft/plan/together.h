// SPDX-License-Identifier: Apache-2.0
// together: which products are one launch because they read the same input: Q, K and V, or gate and up. With few tokens
// their weights stream through as one matrix; with many they run one after the other. Each has its adapter, factors and
// activation; one that adds a residual, or reads or stores more than x and its result, stands alone. Where nothing reads the results of two
// but their product element by element (gate and up), that is part of the launch.
#pragma once
#include <graft/plan/product.h>

namespace graft {

constexpr bool joins_others(const product_slots& p) {
  return p.before_posts < 0 && !has_side_tensors(p) && p.weight_by_row && p.pre < 0 && p.gate < 0 && p.residual < 0;
}
// For each product those of its launch, itself included, in the order of their results; at most `most`.
[[gnu::cold]] constexpr sequence<sequence<int>> products_together(const sequence<product_slots>& products, int most) {
  sequence<sequence<int>> groups;
  for (int k = 0; k < products.size(); ++k) {
    sequence<int> alone;
    alone.push(k);
    groups.push(alone);
  }
  node_set taken(products.size());
  for (int k = products.size() - 1; k >= 0; --k) {  // products are found from the last one to the first
    if (taken[k] || !joins_others(products[k])) continue;
    sequence<int> group;
    for (int other = k; other >= 0 && group.size() < most; --other)
      if (!taken[other] && products[other].x == products[k].x && joins_others(products[other])) group.push(other);
    for (const int member : group) taken.add(member), groups[member] = group;
  }
  return groups;
}
// The multiplication of the results of two products; -1: there is none, or somebody else reads one of them.
constexpr id gate_of(const graph& g, const sequence<int>& readers, const product_slots& p, const product_slots& q) {
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const bool of_both =
        v.what == op::mul && ((v.a == p.result && v.b == q.result) || (v.a == q.result && v.b == p.result));
    if (!of_both || readers[p.result] != 1 || readers[q.result] != 1) continue;
    bool same = true;
    for (int axis = 0; axis < 4; ++axis)
      same = same && v.d[axis] == g[p.result].d[axis] && v.d[axis] == g[q.result].d[axis];
    if (same) return i;
  }
  return none_id;
}

}  // namespace graft
