// SPDX-License-Identifier: Apache-2.0
// gemm_launch: a product with its slots (gemm_slots.h), or a group of products that read one input, with the wgrads that
// run in its launch.
#pragma once
#include <graft/plan/launch/dropout_gemm.h>
#include <graft/plan/launch/expression.h>
#include <graft/plan/launch/gemm_problem.h>
#include <graft/plan/launch/gemm_slots.h>
#include <graft/plan/launch/kronecker_chain.h>
#include <graft/plan/launch/matrix_stack.h>
#include <graft/plan/launch/rowwise.h>
#include <graft/plan/launch/single_nodes.h>

#include <initializer_list>

namespace graft {

// ---- Grouped GEMM

// Grouped GEMM: products that read one input (Q, K and V; gate and up) run as one launch. Skinny GEMMs read their
// weights as one matrix, large ones run one after the other. Each product has its own adapter, factors and activation;
// one that adds a residual, or stores or reads more than x and its result, cannot be grouped. Where the results of two
// products are read only by their elementwise product (the gate of SwiGLU or GeGLU), that gate is part of the launch.

constexpr bool can_be_grouped(const gemm_slots& p) {
  return p.pre_epilogue < 0 && !exposes_shrink(p) && p.weight_is_nt && p.prologue < 0 && p.residual < 0;
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

// ---- Fused wgrads

// Fused wgrads: which wgrads run in the launch of a dgrad GEMM, on SMs that its tiles leave idle. With a
// low-rank branch the GEMM is dx = dy W + T A with T = dy B, [tokens, rank], and the wgrads are dA = Tᵀ x, which waits
// for T within the launch, and dB = dyᵀ U, where U = x Aᵀ is the shrink result of forward. With a factor l per column
// of dy it is dx = (dy ⊙ l) W, and the wgrad is the gradient of l, Σ dy ⊙ u per column.

// For each wgrad the product whose launch it runs in, or -1. A product takes at most two: one that waits for T and one
// that does not. All are -1 where the target has no such kernel.
[[gnu::cold]] constexpr sequence<int> wgrad_fusion(const graph& g, const sequence<gemm_slots>& products,
                                                   const sequence<wgrad_launch>& sums, bool target_can) {
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
      const node_set needed = dependencies(g, p.result);
      node_set made(g.size);  // computed by this launch
      for (const id i : p.inside) made.add(i);
      const bool columnwise = hosts_column_wgrad(p);
      const id shrink = columnwise ? none_id : p.branches[0].s;
      // True for T, and for values computed before the launch: they depend on no host, or the product needs them.
      auto ready = [&](id i) { return i == shrink || !after[i] || (needed[i] && !made[i]); };
      for (int k = sums.size() - 1; k >= 0; --k) {
        const wgrad_launch& s = sums[k];
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

// ---- The launch

struct gemm_launch {
  struct capabilities : gemm_slot_capabilities {
    int max_branch_rank = 0;    // largest rank of a branch inside a GEMM; larger ones are folded
    int max_grouped_gemms = 1;  // most products of a grouped GEMM
    bool fuses_gates = false;   // grouped GEMMs of two products multiply their results (SwiGLU)
    int resident_pairs = 0;     // clusters of two CTAs of the GEMM kernel that are resident at once
    // The number of kernels of one GEMM; null: one.
    target_function<int(const gemm_problem&, const target&)> kernels{};
    // The reason why one GEMM takes several kernels, which names what to change; it may be null or return no text.
    target_function<text(const gemm_problem&, const target&)> why_several{};
    // The number of kernels of a grouped GEMM of these sizes; 0: its products run one after the other.
    target_function<int(const gemm_problem*, int count, const target&)> grouped_kernels{};
    // The number of kernels of a grouped GEMM with its gate; 0: the gate is a kernel of its own.
    target_function<int(const gemm_problem*, const target&)> gated_kernels{};
    // Returns true if one kernel rotates all inputs of a launch; otherwise each has its own.
    target_function<bool(const graph&, const id* rotations, int count, const size_values&, dtype, const target&)>
        rotations_share_kernel{};
    // Returns true if the kernel of the GEMM rotates its result; otherwise a kernel after it does.
    target_function<bool(const gemm_problem&, const target&)> rotation_is_fused{};
  };
  struct work {
    sequence<gemm_slots> products;
    // By product: the members of its grouped GEMM. By the first member: the gate.
    sequence<sequence<int>> groups;
    sequence<id> gates;
  };

  id around = none_id;             // the product with the base weight, or the result
  int product = 0, grouped = 0;    // index of the first product in launch_plan::products, and how many follow it
  id gated = none_id;              // the elementwise product of its two results, which is stored instead of them
  int fused_wgrads[2] = {-1, -1};  // wgrads that run in its launch: indices of wgrad_launch

  constexpr id anchor() const { return around; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class F> constexpr void each_wgrad(int, F f) const {
    for (const int k : fused_wgrads)
      if (k >= 0) f(k);
  }
  // Calls f with what its products read besides the operands of its nodes: packed inputs and residuals.
  template <class Plan, class F> constexpr void each_further_read(const Plan& p, F f) const {
    each_product([&](int k) { f(p.products[k].x), f(p.products[k].residual); });
  }
  // Calls f with the index of each product.
  template <class F> constexpr void each_product(F f) const {
    for (int k = product; k <= product + grouped; ++k) f(k);
  }

  template <class Facts> constexpr int kernels(const Facts& in) const {
    const auto& can = in.p.to.template can<gemm_launch>();
    const target& to = in.p.to;
    sequence<gemm_problem> all;
    each_product([&](int k) { all.push(shape_of(in.g, in.p.products[k], in.s, in.type, in.stored)); });
    int n = 0;
    for (int k = 0; k < 2; ++k)
      if (fused_wgrads[k] >= 0)
        all[0].fused_wgrads[k] =
            shape_of(in.g, in.p.products[product], in.p.template all<wgrad_launch>()[fused_wgrads[k]], in.s);
    for (int k = 0; k < all.size(); ++k)
      if (all[k].output_rotation != 0 && (!can.rotation_is_fused || !can.rotation_is_fused(all[k], to)))
        n += nodes_launch::kernels_of(in, in.p.products[product + k].result);
    const int rotations = rotation_kernels(in);  // with rotations the products read different inputs
    const bool gates = gated >= 0 && rotations == 0 && can.gated_kernels,
               can_join = grouped > 0 && can.grouped_kernels &&
                          (rotations == 0 || in.stored.plain());  // quantized grouped GEMMs need one input
    int joint = gates ? can.gated_kernels(all.begin(), to) : 0;
    n += rotations + (gated >= 0 && joint == 0 ? 1 : 0);
    if (joint == 0 && can_join) joint = can.grouped_kernels(all.begin(), all.size(), to);
    if (joint > 0) return n + joint;
    for (const gemm_problem& one : all) n += !can.kernels ? 1 : can.kernels(one, to);
    return n;
  }
  template <class Facts> constexpr text why_several(const Facts& in) const {
    const auto& why = in.p.to.template can<gemm_launch>().why_several;
    return !why ? text{} : why(shape_of(in.g, in.p.products[product], in.s, in.type, in.stored), in.p.to);
  }
  // The kernels of its input rotations.
  template <class Facts> constexpr int rotation_kernels(const Facts& in) const {
    sequence<id> rotations;
    int n = 0;
    each_product([&](int k) {
      const gemm_slots& of = in.p.products[k];
      if (of.input_rotation < 0) return;
      rotations.push(of.input_rotation);
      n += nodes_launch::kernels_of(in, of.input_rotation);
    });
    const auto& shared = in.p.to.template can<gemm_launch>().rotations_share_kernel;
    return n > 0 && shared && shared(in.g, rotations.begin(), rotations.size(), in.s, in.type, in.p.to) ? 1 : n;
  }

  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    const graph& g = by.g;
    const auto& can = by.template can<gemm_launch>();
    auto& w = by.template work<gemm_launch>();
    auto& sums = by.p.template all<wgrad_launch>();
    const auto& dropouts = by.p.template all<dropout_gemm>();
    const auto claim_all = [&](int k) {
      for (const id inside : w.products[k].inside) by.template claim<gemm_launch>(inside, k);
      if (const id x = w.products[k].input_rotation; x >= 0) by.template claim<gemm_launch>(x, k);
    };
    wgrad_readers by_sums(g.size);
    for (const wgrad_launch& s : sums) by_sums.add(s);
    const node_set shrinks = dropout_shrinks(g, dropouts);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!by.is_free(i)) continue;
      const gemm_slots s =
          gemm_at(g, by.p.when, by.readers, by_sums, shrinks, i, can, by.template can<rowwise_launch>().fused);
      if (!s.found) continue;
      w.products.push(s), claim_all(w.products.size() - 1);
    }
    w.products = with_dropout_shrinks(g, by.readers, dropouts, static_cast<sequence<gemm_slots>&&>(w.products));
    for (int k = 0; k < w.products.size(); ++k) claim_all(k);
    for (int k = 0; k < sums.size(); ++k)
      for (id i = 0; i < g.size; ++i)
        if (by.is_free(i) && absorb_scaled_operand(g, by.p.when, i, sums[k])) by.template claim<wgrad_launch>(i, k);
    by.template work<wgrad_launch>().host =
        wgrad_fusion(g, w.products, sums, by.template can<wgrad_launch>().fuses_into_dgrad);
    w.groups = group_products(w.products, can.max_grouped_gemms);
    w.gates = sequence<id>(w.products.size(), none_id);
    for (int k = 0; can.fuses_gates && k < w.products.size(); ++k)
      if (w.groups[k].size() == 2 && w.groups[k][0] == k)
        if (const id gate = gate_of(g, by.readers, w.products[k], w.products[w.groups[k][1]]);
            gate >= 0 && by.is_free(gate))
          w.gates[k] = gate, by.template claim<gemm_launch>(gate, k);
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id i) {
    const auto& w = by.template work<gemm_launch>();
    if (w.products[index].result != i) return;
    const sequence<int>& group = w.groups[index];
    for (const int member : group)
      if (!inputs_computed(by, member)) return;
    auto& all = by.p.template all<gemm_launch>();
    by.template open<gemm_launch>(all.size());
    all.push({i, by.p.products.size(), group.size() - 1});
    for (const int member : group) all.back().add_product(by, member);
    if (const id gate = w.gates[group[0]]; gate >= 0) all.back().gated = gate, by.add(gate, launch_slot::epilogue);
  }

 private:
  template <class Planner> [[gnu::cold]] static constexpr bool inputs_computed(const Planner& by, int member) {
    const gemm_slots& s = by.template work<gemm_launch>().products[member];
    const auto& sums = by.p.template all<wgrad_launch>();
    if (!by.template computed<gemm_launch>(s.inside, member)) return false;
    if (s.input_rotation >= 0 && !by.template computed<gemm_launch>(s.input_rotation, member)) return false;
    for (int k = 0; k < sums.size(); ++k)
      if (by.template work<wgrad_launch>().host[k] == member &&
          !by.template computed<gemm_launch>(sums[k].product, member))
        return false;
    return true;
  }
  template <class Planner> [[gnu::cold]] constexpr void add_product(Planner& by, int index) {
    const graph& g = by.g;
    const gemm_slots& s = by.template work<gemm_launch>().products[index];
    by.p.products.push(s);
    node_set inside(g.size);
    for (const id i : s.inside) inside.add(i);
    const id x = s.prologue >= 0 ? s.scaled : s.input_rotation >= 0 ? s.input_rotation : s.x;
    if (s.input_rotation >= 0) by.add(s.input_rotation, launch_slot::prologue);
    for (id i = 0; i < g.size; ++i) {
      if (!inside[i]) continue;
      const node& v = g[i];
      const bool base = v.what == op::matmul && v.b == s.weight && v.a == x;
      const bool branch = v.what == op::fold_columns || v.what == op::repeat || v.what == op::matmul;
      by.add(i, base            ? launch_slot::mainloop
                : branch        ? launch_slot::branch
                : i == s.scaled ? launch_slot::prologue
                                : launch_slot::epilogue);
      if (base && product == by.p.products.size() - 1) around = i;
    }
    const auto& host = by.template work<wgrad_launch>().host;
    for (int k = 0, n = 0; k < host.size(); ++k)
      if (host[k] == index) fused_wgrads[n++] = k, by.p.template all<wgrad_launch>()[k].add_nodes(by);
  }
};

}  // namespace graft
