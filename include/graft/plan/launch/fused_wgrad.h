// SPDX-License-Identifier: Apache-2.0
// Fused wgrads: which wgrads run in the launch of a dgrad GEMM, on multiprocessors that its tiles leave idle. With a
// low-rank branch the GEMM is dx = dy W + T A with T = dy B, [tokens, rank], and the wgrads are dA = Tᵀ x, which waits
// for T within the launch, and dB = dyᵀ U, where U = x Aᵀ is the shrink result of forward. With a factor l per column
// of dy it is dx = (dy ⊙ l) W, and the wgrad is the gradient of l, Σ dy ⊙ u per column.
#pragma once
#include <graft/plan/launch/gemm_slots.h>

#include <initializer_list>

namespace graft {

// For each wgrad the product whose launch it runs in, or -1. A product takes at most two: one that waits for T and one
// that does not. All are -1 where the target has no such kernel.
[[gnu::cold]] constexpr sequence<int> wgrad_fusion(const graph& g, const sequence<gemm_slots>& products,
                                                   const sequence<wgrad_sum>& sums, bool target_can) {
  sequence<int> fused_wgrads(sums.size(), -1);
  if (!target_can) return fused_wgrads;
  auto hosts_column_wgrad = [&](const gemm_slots& p) {
    return p.branches.empty() && !p.weight_is_nt && p.prologue >= 0 && base_leaf(g, p.weight) >= 0;
  };
  auto hosts = [&](const gemm_slots& p) {
    const bool branches = p.branches.size() == 1 && p.branches[0].stores_shrink && !p.weight_is_nt && p.prologue < 0;
    return (branches && base_leaf(g, p.weight) >= 0) || hosts_column_wgrad(p);
  };
  node_set inside(g.size);  // the nodes of all possible hosts
  for (const gemm_slots& p : products)
    for (const id i : p.inside)
      if (hosts(p)) inside.add(i);
  const node_set after = [&] {
    node_set s = inside;
    for (id i = 0; i < g.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && s[o]) s.add(i);
    return s;
  }();
  sequence<unsigned> taken(products.size(), 0);  // bit 0: a wgrad that waits for T, bit 1: one that does not
  for (const bool own : {true, false})           // wgrads of the product's own branch come first
    for (int at = 0; at < products.size(); ++at) {
      const gemm_slots& p = products[at];
      if (!hosts(p)) continue;
      const node_set needed = below(g, p.result);
      node_set made(g.size);  // computed by this launch
      for (const id i : p.inside) made.add(i);
      const bool columnwise = hosts_column_wgrad(p);
      const id shrink = columnwise ? none_id : p.branches[0].s;
      // True for T, and for values computed before the launch: they depend on no host, or the product needs them.
      auto ready = [&](id i) { return i == shrink || !after[i] || (needed[i] && !made[i]); };
      for (int k = sums.size() - 1; k >= 0; --k) {
        const wgrad_sum& s = sums[k];
        if (s.by_column != columnwise || s.scaled >= 0 || fused_wgrads[k] >= 0 || needed[s.product]) continue;
        const bool waits_for_shrink = s.left == shrink || s.right == shrink;
        if (own && !waits_for_shrink && s.left != p.x && s.right != p.x) continue;
        const unsigned bit = waits_for_shrink ? 1 : 2;
        if ((taken[at] & bit) != 0 || !ready(s.left) || !ready(s.right)) continue;
        if (g[s.left].d[2] != g[p.result].d[2] || g[s.right].d[2] != g[p.result].d[2]) continue;
        fused_wgrads[k] = at, taken[at] |= bit;
      }
    }
  return fused_wgrads;
}

}  // namespace graft
