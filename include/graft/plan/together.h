// SPDX-License-Identifier: Apache-2.0
// together: which products are one launch because they read the same input: Q, K and V, or gate and up. With few tokens
// their weights stream through as one matrix; with many they run one after the other. Each has its adapter, factors and
// activation; one that adds a residual or stores more than its result stands alone.
#pragma once
#include <graft/plan/product.h>

namespace graft {

constexpr bool joins_others(const product_slots& p) {
  bool keeps = p.before_posts >= 0;
  for (const side_branch& b : p.sides) keeps = keeps || b.kept;
  return !keeps && p.weight_by_row && p.pre < 0 && p.residual < 0;
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

}  // namespace graft
