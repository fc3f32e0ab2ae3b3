// SPDX-License-Identifier: Apache-2.0
// kernel_count: how many kernels a plan takes on its target with given sizes; and folds, trains_folded: whether the
// adapter is folded into a copy of the weight. A backend calls these functions before it runs.
#pragma once
#include <graft/derive/cost.h>
#include <graft/derive/low_rank_update.h>
#include <graft/plan/fuse.h>

#include <initializer_list>

namespace graft {

// Transfers the bound sizes of one graph to another graph of the same layer, by name.
[[gnu::cold]] constexpr size_values sizes_for(const graph& to, const graph& from, const size_values& s) {
  size_values t;
  for (int i = 0; i < to.sizes.count; ++i) {
    const size_entry& e = to.sizes.e[i];
    if (e.index < 0) continue;
    if (const int index = from.sizes.find_like(to.sizes, e); index >= 0) t.v[e.index] = s.v[index];
  }
  return t;
}
// Binds nominal numbers to the names that have none, for decisions about layer types with open sizes.
constexpr size_values with_nominals(const graph& g, size_values s) {
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && s.v[e.index] == unknown) s.v[e.index] = e.assumed();
  return s;
}

// What the facts of a launch follow from.
struct launch_facts {
  const graph& g;
  const launch_plan& p;
  const size_values& s;
  dtype type;  // the element type of weights and activations
  const quant_format& stored;
};
// The call inputs that are copied with padding before launch `of`, the first one whose wgrads read them.
[[gnu::cold]] constexpr sequence<id> padded_operands(const graph& g, const launch_plan& p, const launch& of,
                                                     const size_values& s, dtype type) {
  sequence<id> found;
  const auto& is_padded = p.to.can<wgrad_launch>().operand_is_padded;
  if (!is_padded) return found;
  node_set seen(g.size);
  for (const launch& l : p.launches) {
    p.each_wgrad(l, [&](int sum) {
      const wgrad_launch& w = p.all<wgrad_launch>()[sum];
      for (const id i : {w.left, w.right}) {
        if (w.by_column || seen[i] || !is_call_input(g, i)) continue;
        if (!is_padded(g.sizes.value(g[i].d[3], s), type, p.to)) continue;
        seen.add(i);
        if (&l == &of) found.push(i);
      }
    });
    if (&l == &of) break;
  }
  return found;
}
constexpr int kernel_count(const graph& g, const launch_plan& p, const launch& l, const size_values& s, dtype type,
                           const quant_format& stored) {
  int n = 0;
  p.visit(l, [&](const auto& one) { n = one.kernels(launch_facts{g, p, s, type, stored}); });
  for (const id i : padded_operands(g, p, l, s, type)) n += element_count(g, i, s) == 0 ? 0 : 1;
  return n;
}
constexpr int kernel_count(const graph& g, const launch_plan& p, const size_values& s, dtype type,
                           const quant_format& stored = {}) {
  int n = 0;
  for (const launch& l : p.launches) n += kernel_count(g, p, l, s, type, stored);
  return n;
}

// Returns true if inference folds the adapter into a copy of the weight, given the plans of both forms for a target
// whose launches are GEMMs: because the low-rank branch does not fit into the one GEMM.
[[gnu::cold]] constexpr bool folds(const graph& branch, const launch_plan& branched, const launch_plan& folded,
                                   const size_values& s) {
  auto one_product = [](const launch_plan& p) { return p.products.size() == 1 && p.launches.size() == 1; };
  if (!one_product(folded)) return false;
  // A rotation of x (OFT, BOFT) is a pass over x in every call; folded, it is one pass over W per parameter change.
  for (const launch& l : branched.launches)
    if (branch[branched.anchor_of(l)].what == op::rotate) return true;
  for (const gemm_slots& product : branched.products)
    if (product.input_rotation >= 0) return true;
  // A branch that is not inside the one GEMM takes further launches in every call (LoKr).
  const bool inside = branched.products.size() == 1 && branched.products[0].residual < 0;
  return !inside || branch_rank(branch, branched.products[0], with_nominals(branch, s)) >
                        branched.to.can<gemm_launch>().max_branch_rank;
}
// Returns true if the adapter is folded into a copy of the weight, because that is cheaper than the low-rank branch or
// the only form that the target can fuse. `stored` is the element type of the weight.
[[gnu::cold]] constexpr bool folds(const target& to, const graph& branch, const graph& folded, const size_values& s,
                                   dtype stored = dtype::bf16) {
  const size_values of_branch = with_nominals(branch, s),
                    of_folded = with_nominals(folded, sizes_for(folded, branch, of_branch));
  if (to.granularity == target::work::by_nodes) return false;
  if (to.granularity == target::work::by_rows) {
    const long long plain = call_flops(folded, of_folded), tokens = folded.sizes.tokens(of_folded);
    const long long elements = tokens > 0 ? plain / tokens / 2 : 0;
    const bool widens = bits_of(stored) < bits_of(dtype::f32);
    // A butterfly (BOFT) passes over x once per factor, which costs several times its arithmetic: two factors of 8 on
    // 1024 x 1024 are 3 % of the flops and took 1.19 to 1.25 of the layer's time.
    for (id i = 0; !widens && elements >= large_weight && i < branch.size; ++i)
      if (branch[i].what == op::rotate && branch.sizes.value(branch[branch[i].b].d[0], of_branch) > 1) return true;
    return worth_folding(call_flops(branch, of_branch), plain, widens, elements);
  }
  return folds(branch, fuse(branch, to), fuse(folded, to), s);
}
// The flops of a call in units of the flops of GEMMs over rows and wgrads. Other products of large matrices may be
// slower on the target.
[[gnu::cold]] constexpr long long weighted_flops(const graph& g, const launch_plan& p, const size_values& s) {
  constexpr long long narrow = 64;
  const long long slower = p.to.can<nodes_launch>().flop_factor;
  long long flops = call_flops(g, s);
  for (const launch& l : p.launches) {
    const id i = p.anchor_of(l);
    const node& v = g[i];
    if (!l.is<nodes_launch>() || l.count != 1 || v.what != op::matmul) continue;
    if (g.sizes.value(v.d[2], s) <= narrow || g.sizes.value(v.d[3], s) <= narrow) continue;
    flops = saturating_add(flops, saturating_multiply(slower - 1, flops_of(g, i, s)));
  }
  return flops;
}
// Whether training folds the adapter into a copy of the weight that one GEMM recomputes after each step
// (derive/folded_training.h). It does so if this takes fewer flops, the branch would be a launch of its own, and a call
// has at least as many rows as the layer has inputs, so that the copy is no larger than y. The last two conditions do
// not apply where the usual form computes such a weight in any case (RandLoRA).
struct training_graphs {  // with saved tensors as outputs of forward and inputs of backward
  graph forward, backward;
};
[[gnu::cold]] constexpr bool trains_folded(const target& to, const training_graphs& usual,
                                           const training_graphs& in_weight, size_values s) {
  if (to.granularity != target::work::by_products) return false;
  const launch_plan branched = fuse(usual.forward, to), plain = fuse(in_weight.forward, to);
  if (branched.products.size() != 1 || plain.products.size() != 1 || plain.launches.size() != 1) return false;
  const id weight = plain.products[0].weight;
  if (!low_rank_update_at(in_weight.forward, weight).found) return false;
  const bool computed = branched.launches.size() == 1 && base_leaf(usual.forward, branched.products[0].weight) < 0;
  if (!computed && branch_rank(usual.forward, branched.products[0], s) <= to.can<gemm_launch>().max_branch_rank)
    return false;
  const size_values mine = sizes_for(in_weight.forward, usual.forward, s);
  if (!computed &&
      in_weight.forward.sizes.tokens(mine) < in_weight.forward.sizes.value(in_weight.forward[weight].d[3], mine))
    return false;
  auto flops = [&](const training_graphs& t, const launch_plan& forward) {
    return saturating_add(weighted_flops(t.forward, forward, sizes_for(t.forward, usual.forward, s)),
                          weighted_flops(t.backward, fuse(t.backward, to), sizes_for(t.backward, usual.forward, s)));
  };
  return flops(in_weight, plain) < flops(usual, branched);
}

}  // namespace graft
