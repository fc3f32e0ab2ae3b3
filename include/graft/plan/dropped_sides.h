// SPDX-License-Identifier: Apache-2.0
// dropped_sides: what the products of a layer do for a branch with dropout, which has narrow products of its own (dropped.h):
//     forward    y = x Wᵀ + S Bᵀ          S = drop(x) Aᵀ is given, by a launch before
//     backward   dx = dy W + drop(T A)    T = dy B is made by the launch of dy W on its way, for those that read it later
// The gradient dB = dyᵀ S then has its place beside the tiles of dy W, as without dropout (beside.h).
#pragma once
#include <graft/plan/dropped.h>
#include <graft/plan/product.h>

namespace graft {

// Values S that products may add S Bᵀ of.
[[gnu::cold]] constexpr node_set given_sides(const graph& g, const sequence<dropped_product>& dropped) {
  node_set given(g.size);
  for (const dropped_product& d : dropped)
    if (d.how == dropped_product::form::shrink) given.add(d.result);
  return given;
}

namespace detail {
constexpr bool is_bare(const product_slots& p) {
  return p.sides.empty() && p.posts.empty() && p.act == op::detach && p.pre < 0 && p.turn < 0 && p.turned < 0 &&
         p.before_posts < 0;
}
}  // namespace detail

// The products of a graph where each T is part of the product that it shares dy with, and none of its own.
[[gnu::cold]] constexpr sequence<product_slots> with_made_sides(const graph& g, const sequence<int>& readers,
                                                                const sequence<dropped_product>& dropped,
                                                                sequence<product_slots> products) {
  sequence<int> narrow(g.size, 0);  // how often a value is T of such a product
  for (const dropped_product& d : dropped)
    for (const dropped_term& t : d.terms)
      if (t.narrow >= 0) ++narrow[t.narrow];
  node_set gone(products.size());
  for (int k = 0; k < products.size(); ++k) {
    const product_slots& t = products[k];
    if (narrow[t.result] == 0 || narrow[t.result] != readers[t.result] || !detail::is_bare(t) || t.residual >= 0)
      continue;
    for (product_slots& host : products) {
      if (host.x != t.x || !detail::is_bare(host) || host.weight_by_row || base_leaf(g, host.weight) < 0) continue;
      if (below(g, host.result)[t.result]) continue;  // it waits for what T is needed for
      side_branch made;
      made.a = t.weight, made.a_by_rank = t.weight_by_row, made.s = t.result, made.rank = g[t.result].d[3];
      made.kept = true, made.added = false;
      host.sides.push(made);
      for (const id i : t.inside) host.inside.push(i);
      gone.add(k);
      break;
    }
  }
  sequence<product_slots> left;
  for (int k = 0; k < products.size(); ++k)
    if (!gone[k]) left.push(products[k]);
  return left;
}

}  // namespace graft
