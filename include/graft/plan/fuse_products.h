// SPDX-License-Identifier: Apache-2.0
// fuse for a GPU: the launches of what joined_nodes.h found, in an order in which all that a launch reads is there.
#pragma once
#include <graft/plan/joined_nodes.h>

namespace graft {

namespace detail {

struct product_planner : joined_nodes {
  using joined_nodes::joined_nodes;

  // In the order of the nodes; what reads a value that a later product keeps for it waits for that product.
  [[gnu::cold]] constexpr void gather() {
    whole_nodes();
    find();
    for (int before = -1; before != p.launches.size();) {
      before = p.launches.size();
      for (id i = 0; i < g.size; ++i)
        if (member(i) && g[i].what != op::reshape && p.launch_of[i] < 0) launch_with(i);  // a reshaped value: no launch
    }
  }
  // The launch that node i stands for, where it can run.
  [[gnu::cold]] constexpr void launch_with(id i) {
    if (const int d = dropped_of[i]; d >= 0) {
      if (p.dropped[d].result == i && computed_before(p.dropped[d].inside, dropped_of, d)) add_dropped(d);
    } else if (const int c = chain_of[i]; c >= 0) {
      if (p.chained[c].result == i && computed_before(p.chained[c].inside(), chain_of, c)) add_chain(c);
    } else if (const int k = product_of[i]; k >= 0 && products[k].result == i) {
      if (is_ready(groups[k])) add_products(groups[k], i);
    } else if (const int s = sum_of[i]; s >= 0 && (p.sums[s].result == i || p.sums[s].scaled == i)) {
      if (runs_beside[s] < 0 && computed_before(p.sums[s].product, product_of, -1)) add_sum(p.sums[s], s);
    } else if (const int m = stack_of[i]; m >= 0) {
      if (computed_before(p.stacks[m].inside, stack_of, m)) add_stack(m);
    } else if (const int e = expression_of[i]; e >= 0) {
      if (expressions[e][0] == i && computed_before(expressions[e])) add_expression(e);
    } else if (const int h = heads_of[i]; h >= 0) {
      if (p.row_launches[h].result != i && computed_before(p.row_launches[h].inside, row_of, h)) add_attention(i, h);
    } else if (const int r = row_of[i]; r >= 0) {
      if (product_before[r] < 0 && p.row_launches[r].result == i &&
          computed_before(p.row_launches[r].inside, row_of, r))
        add_row_launch(p.row_launches[r], r);
    } else if (k < 0 && s < 0 && computed_before(i, product_of, -1)) {
      open(family_of(g[i]), i);
      add(i, slot::alone);
    }
  }

 private:
  // What node i reads from other launches is there; `own`: the product or expression that it is part of.
  constexpr bool computed_before(id i, const sequence<int>& part_of, int own) const {
    for (int k = 0; k < 3; ++k) {
      id o = g[i].operand(k);
      while (o >= 0 && g[o].what == op::reshape && member(o)) o = g[o].a;
      if (o >= 0 && member(o) && p.launch_of[o] < 0 && (own < 0 || part_of[o] != own)) return false;
    }
    return true;
  }
  constexpr bool computed_before(const sequence<id>& inside, const sequence<int>& part_of, int own) const {
    for (const id i : inside)
      if (!computed_before(i, part_of, own)) return false;
    return true;
  }
  constexpr bool computed_before(const sequence<id>& inside) const {  // the same for nodes that others may compute too
    sequence<int> own(g.size, -1);
    for (const id i : inside) own[i] = 0;
    return computed_before(inside, own, 0);
  }
  [[gnu::cold]] constexpr bool is_ready(const sequence<int>& group) const {
    for (const int member : group) {
      if (!computed_before(products[member].inside, product_of, member)) return false;
      for (const id ahead : {products[member].turn, products[member].gate})
        if (ahead >= 0 && !computed_before(ahead, product_of, member)) return false;
      for (int k = 0; k < p.sums.size(); ++k)
        if (runs_beside[k] == member && !computed_before(p.sums[k].product, product_of, member)) return false;
    }
    return true;
  }
  [[gnu::cold]] constexpr void add_products(const sequence<int>& group, id result) {
    open(family::product, result);
    p.launches.back().product = p.products.size(), p.launches.back().together = group.size() - 1;
    for (const int member : group) add_product(member);
    if (const id gate = gates[group[0]]; gate >= 0) p.launches.back().gated = gate, add(gate, slot::post);
    if (norm_behind[group[0]] < 0) return;
    p.launches.back().norm = norm_behind[group[0]];
    for (const id n : p.row_launches[norm_behind[group[0]]].inside) add(n, slot::post);
  }
  [[gnu::cold]] constexpr void add_product(int index) {
    const product_slots& s = products[index];
    p.products.push(s);
    node_set inside(g.size);
    for (const id i : s.inside) inside.add(i);
    const id x = s.pre >= 0 ? s.scaled : s.turn >= 0 ? s.turn : s.x;
    for (const id ahead : {s.gate, s.turn})
      if (ahead >= 0) add(ahead, slot::pre);
    for (id i = 0; i < g.size; ++i) {
      if (!inside[i]) continue;
      const node& v = g[i];
      const bool base = v.what == op::matmul && v.b == s.weight && v.a == x;
      const bool side = v.what == op::fold || v.what == op::repeat || v.what == op::matmul;
      add(i, base ? slot::product : side ? slot::side : i == s.scaled ? slot::pre : slot::post);
      if (base && p.launches.back().product == p.products.size() - 1) p.launches.back().anchor = i;
    }
    for (int k = 0, n = 0; k < p.sums.size(); ++k) {
      if (runs_beside[k] != index) continue;
      p.launches.back().beside[n++] = k;
      add(p.sums[k].product, slot::reduce);
      if (p.sums[k].result != p.sums[k].product) add(p.sums[k].result, slot::post);
    }
  }
  [[gnu::cold]] constexpr void add_dropped(int index) {
    const dropped_product& d = p.dropped[index];
    open(family::product, d.terms[0].product);
    p.launches.back().dropped = index;
    for (const id i : d.inside)
      add(i, g[i].what == op::matmul ? (d.how == dropped_product::form::sum ? slot::reduce : slot::product)
             : d.how == dropped_product::form::expand ? slot::post
                                                      : slot::pre);
  }
  [[gnu::cold]] constexpr void add_chain(int index) {
    const chained_product& c = p.chained[index];
    open(family::product, c.result);
    p.launches.back().chained = index;
    for (const id i : c.inside())
      add(i, i == c.result ? slot::product : i == c.left_sum || i == c.right_sum ? slot::reduce : slot::pre);
  }
  [[gnu::cold]] constexpr void add_stack(int index) {
    const small_stack& s = p.stacks[index];
    open(family::product, s.inside[s.inside.size() - 1]);
    p.launches.back().stack = index;
    for (const id i : s.inside) add(i, slot::alone);
  }
  [[gnu::cold]] constexpr void add_attention(id i, int heads) {
    open(family::attention, i);
    p.launches.back().rows = heads;
    for (const id n : p.row_launches[heads].inside) add(n, slot::pre);
    add(i, slot::alone);
  }
  [[gnu::cold]] constexpr void add_expression(int e) {
    open(family_of(g[expressions[e][0]]), expressions[e][0]);
    add_nodes(e);
    if (second[e] < 0 || p.launch_of[expressions[second[e]][0]] >= 0) return;
    p.launches.back().also = expressions[second[e]][0];
    add_nodes(second[e]);
    add_sums_of_both();
  }
  [[gnu::cold]] constexpr void add_nodes(int e) {
    for (int k = expressions[e].size() - 1; k >= 0; --k)
      add(expressions[e][k], slot::alone, expression_of[expressions[e][k]] == e);
  }
  [[gnu::cold]] constexpr void add_row_launch(const row_launch& r, int index) {
    const bool norm = r.norm >= 0;
    open(norm ? family::rowwise : family::pointwise, norm ? r.norm : r.result);
    p.launches.back().rows = index;
    for (const id i : r.inside) add(i, i == p.launches.back().anchor ? slot::alone : norm ? slot::post : slot::pre);
  }
  [[gnu::cold]] constexpr void add_sum(const token_sum& s, int index) {
    open(family::product, s.product);
    p.launches.back().sum = index;
    add(s.product, slot::reduce);
    if (s.result != s.product) add(s.result, slot::post);
    if (s.scaled >= 0) add(s.scaled, slot::pre);
  }
  // Both gradients of a gate by silu, where all that is read of them is a sum over the tokens and a product with a row
  // (DoRA).
  [[gnu::cold]] constexpr void add_sums_of_both() {
    launch& l = p.launches.back();
    const id both[2] = {l.anchor, l.also};
    int found[2] = {-1, -1};
    for (int b = 0; b < 2; ++b)
      for (int k = 0; k < p.sums.size(); ++k)
        if (const token_sum& s = p.sums[k];
            s.by_column && s.scaled >= 0 && s.left == both[b] && readers[both[b]] == 2 && is_leaf(g[s.right].what))
          found[b] = k;
    bool by_silu = false;
    for (int n = l.first; n < l.first + l.count; ++n) by_silu = by_silu || g[p.nodes[n]].what == op::silu;
    if (found[0] < 0 || found[1] < 0 || !by_silu) return;
    for (int b = 0; b < 2; ++b) {
      const token_sum& s = p.sums[l.summed[b] = found[b]];
      add(s.product, slot::reduce), add(s.result, slot::post), add(s.scaled, slot::pre);
    }
  }
};

}  // namespace detail

// target::gather_products of what runs by products.
[[gnu::cold]] constexpr void gather_products(const detail::planner& of) { detail::product_planner{of}.gather(); }

}  // namespace graft
