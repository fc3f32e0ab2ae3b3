// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM: products that read one input (Q, K and V; gate and up) run as one launch. Skinny GEMMs read their
// weights as one matrix, large ones run one after the other. Each product has its own adapter, factors and activation;
// one that adds a residual, or stores or reads more than x and its result, cannot be grouped. Where the results of two
// products are read only by their elementwise product (the gate of SwiGLU or GeGLU), that gate is part of the launch.
#pragma once
#include <graft/plan/launch/gemm_slots.h>

namespace graft {

constexpr bool can_be_grouped(const gemm_slots& p) {
  return p.pre_epilogue < 0 && !exposes_shrink(p) && p.weight_is_nt && p.prologue < 0 && p.gate < 0 && p.residual < 0;
}
// For each product the members of its group, itself included, in the order of their results; at most `most` of them.
[[gnu::cold]] constexpr sequence<sequence<int>> group_products(const sequence<gemm_slots>& products, int most) {
  sequence<sequence<int>> groups;
  for (int k = 0; k < products.size(); ++k) {
    sequence<int> single;
    single.push(k);
    groups.push(single);
  }
  node_set taken(products.size());
  for (int k = products.size() - 1; k >= 0; --k) {  // products are stored from the last one to the first
    if (taken[k] || !can_be_grouped(products[k])) continue;
    sequence<int> group;
    for (int other = k; other >= 0 && group.size() < most; --other)
      if (!taken[other] && products[other].x == products[k].x && can_be_grouped(products[other])) group.push(other);
    for (const int member : group) taken.add(member), groups[member] = group;
  }
  return groups;
}
// The elementwise product of the results of p and q; none_id: there is none, or a result has other readers.
constexpr id gate_of(const graph& g, const sequence<int>& readers, const gemm_slots& p, const gemm_slots& q) {
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
