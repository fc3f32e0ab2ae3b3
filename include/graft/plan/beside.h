// SPDX-License-Identifier: Apache-2.0
// beside: which sums over the tokens may run in the launch of a product, on processors that its tiles leave idle. The
// product is a data gradient with a side branch, dx = dy W + T A with T = dy B; the sums are the gradients of its factors,
// dA = Tᵀ x, which waits for T as it is made, and dB = dyᵀ S, whose operands are there before. Or it has a factor of its
// input, dx = (dy ⊙ l) W, and the sum is the gradient of that, Σ dy ⊙ u per column.
#pragma once
#include <graft/plan/product.h>

#include <initializer_list>

namespace graft {

// For each sum the product beside which it may run; -1: none, as everywhere where the target has no such launch. At most
// two for each product.
[[gnu::cold]] constexpr sequence<int> sums_beside(const graph& g, const sequence<product_slots>& products,
                                                  const sequence<token_sum>& sums, bool target_can) {
  sequence<int> beside(sums.size(), -1);
  if (!target_can) return beside;
  auto hosts_dots = [&](const product_slots& p) {
    return p.sides.empty() && !p.weight_by_row && p.pre >= 0 && base_leaf(g, p.weight) >= 0;
  };
  auto hosts = [&](const product_slots& p) {
    const bool branches = p.sides.size() == 1 && p.sides[0].kept && !p.weight_by_row && p.pre < 0;
    return (branches && base_leaf(g, p.weight) >= 0) || hosts_dots(p);
  };
  node_set inside(g.size);  // of all hosts: what follows from one of them waits for it
  for (const product_slots& p : products)
    for (const id i : p.inside)
      if (hosts(p)) inside.add(i);
  const node_set after = [&] {
    node_set s = inside;
    for (id i = 0; i < g.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && s[o]) s.add(i);
    return s;
  }();
  sequence<unsigned> taken(products.size(), 0);  // bits: a sum that waits for S, and one that does not
  for (const bool own : {true, false})           // its own gradients before those of others
    for (int at = 0; at < products.size(); ++at) {
      const product_slots& p = products[at];
      if (!hosts(p)) continue;
      const node_set needed = below(g, p.result);
      node_set made(g.size);  // by its launch
      for (const id i : p.inside) made.add(i);
      const bool dots = hosts_dots(p);
      const id side = dots ? none_id : p.sides[0].s;
      // There when it is launched: it waits for nobody, or the product waits for it too.
      auto ready = [&](id i) { return i == side || !after[i] || (needed[i] && !made[i]); };
      for (int k = sums.size() - 1; k >= 0; --k) {
        const token_sum& s = sums[k];
        if (s.by_column != dots || s.scaled >= 0 || beside[k] >= 0 || needed[s.product]) continue;
        const bool waits = s.left == side || s.right == side;
        if (own && !waits && s.left != p.x && s.right != p.x) continue;
        const unsigned bit = waits ? 1 : 2;
        if ((taken[at] & bit) != 0 || !ready(s.left) || !ready(s.right)) continue;
        if (g[s.left].d[2] != g[p.result].d[2] || g[s.right].d[2] != g[p.result].d[2]) continue;
        beside[k] = at, taken[at] |= bit;
      }
    }
  return beside;
}

}  // namespace graft
