// SPDX-License-Identifier: Apache-2.0
// What one launch of a GPU takes in: for each node the product, sum over tokens, norm with its factors, chain or expression
// that it is part of. A node belongs to the first of these that finds it; one that nobody takes is a launch of its own.
#pragma once
#include <graft/plan/beside.h>
#include <graft/plan/dropped_sides.h>
#include <graft/plan/expression.h>
#include <graft/plan/fuse.h>
#include <graft/plan/norm_between.h>
#include <graft/plan/together.h>

namespace graft::detail {

struct joined_nodes : planner {
  sequence<int> readers;
  // By node: the number of what takes it in, or -1.
  sequence<int> dropped_of, chain_of, product_of, sum_of, stack_of, row_of, expression_of;
  sequence<int> heads_of;  // attention, and the row launch whose result nothing else reads
  sequence<product_slots> products;
  // By product: those of the same launch; of the first of them, the gate and the norm behind it.
  sequence<sequence<int>> groups;
  sequence<id> gates;
  sequence<int> norm_behind;
  sequence<int> runs_beside;     // by sum: the product whose launch has room for it
  sequence<int> product_before;  // by row launch: the product that has it inside
  sequence<sequence<id>> expressions;
  sequence<int> second;  // by expression: another of the same launch

  constexpr explicit joined_nodes(const planner& of)
      : planner(of),
        readers(count_readers(g, p.live)),
        dropped_of(g.size, -1),
        chain_of(g.size, -1),
        product_of(g.size, -1),
        sum_of(g.size, -1),
        stack_of(g.size, -1),
        row_of(g.size, -1),
        expression_of(g.size, -1),
        heads_of(g.size, -1) {}

  // A target that is told to run by nodes keeps its products with dropout, and its chains.
  [[gnu::cold]] constexpr void find() {
    if (p.to.takes_dropout) p.dropped = dropped_products(g, p.when, readers, dropped_of);
    for (id i = 0; i < g.size; ++i) readers[i] += dropped_of[i] >= 0 ? 1 : 0;  // nobody else takes it
    if (p.to.largest_chained_side > 0) p.chained = chained_products(g, p.when, readers, chain_of);
    if (p.to.gathers != target::work::by_products) return;
    find_products();
    find_gates();
    node_set free(g.size);
    for (id i = 0; i < g.size; ++i) free.in[i] = is_free(i);
    if (p.to.largest_stack_side > 0) p.stacks = small_stacks(g, p.when, free, stack_of);
    for (id i = 0; i < g.size; ++i) free.in[i] = free[i] && stack_of[i] < 0;
    if (p.to.joins_rows) find_row_launches(free);
    norm_behind = sequence<int>(products.size(), -1), product_before = sequence<int>(p.row_launches.size(), -1);
    if (p.to.carries_norms) find_norms();
    if (p.to.joins_elements) find_expressions(free);
    if (p.to.takes_heads != nullptr) find_heads();
  }

 private:
  constexpr bool is_free(id i) const {
    return member(i) && product_of[i] < 0 && sum_of[i] < 0 && dropped_of[i] < 0 && chain_of[i] < 0;
  }
  [[gnu::cold]] constexpr void find_products() {
    sum_readers sums(g.size);
    if (p.to.sums_tokens) find_sums(sums);
    const node_set given = given_sides(g, p.dropped);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!is_free(i)) continue;
      const product_slots s = product_at(g, p.when, readers, sums, given, i, p.to);
      if (!s.found) continue;
      products.push(s), number_nodes(products.size() - 1);
    }
    products = with_made_sides(g, readers, p.dropped, static_cast<sequence<product_slots>&&>(products));
    for (int k = 0; k < products.size(); ++k) number_nodes(k);
    for (int k = 0; k < p.sums.size(); ++k)
      for (id i = 0; i < g.size; ++i)
        if (is_free(i) && take_scaled(g, p.when, i, p.sums[k])) sum_of[i] = k;
    runs_beside = sums_beside(g, products, p.sums, p.to.sums_beside);
    groups = products_together(products, p.to.joins_products);
  }
  [[gnu::cold]] constexpr void number_nodes(int k) {
    for (const id inside : products[k].inside) product_of[inside] = k;
    for (const id ahead : {products[k].turn, products[k].gate})
      if (ahead >= 0) product_of[ahead] = k;
  }
  [[gnu::cold]] constexpr void find_sums(sum_readers& sums) {
    for (id i = g.size - 1; i >= 0; --i) {
      if (!member(i) || sum_of[i] >= 0 || dropped_of[i] >= 0) continue;
      const token_sum s = sum_at(g, p.when, readers, i);
      if (!s.found) continue;
      sum_of[s.result] = sum_of[s.product] = p.sums.size();
      sums.add(s);
      p.sums.push(s);
    }
  }
  [[gnu::cold]] constexpr void find_gates() {
    gates = sequence<id>(products.size(), none_id);
    for (int k = 0; p.to.joins_gates && k < products.size(); ++k)
      if (groups[k].size() == 2 && groups[k][0] == k)
        if (const id gate = gate_of(g, readers, products[k], products[groups[k][1]]);
            gate >= 0 && member(gate) && product_of[gate] < 0)
          gates[k] = gate, product_of[gate] = k;
  }
  [[gnu::cold]] constexpr void find_row_launches(node_set& free) {
    for (id i = g.size - 1; i >= 0; --i) {
      if (!free[i]) continue;
      row_launch r = row_launch_at(g, p.when, readers, free, i);
      if (!r.found()) continue;
      for (const id n : r.inside) row_of[n] = p.row_launches.size(), free.in[n] = false;
      p.row_launches.push(static_cast<row_launch&&>(r));
    }
  }
  [[gnu::cold]] constexpr void find_norms() {
    for (int r = 0; r < p.row_launches.size(); ++r) {
      if (!only_products_read(g, p.row_launches[r], readers, products)) continue;
      const id h = g[p.row_launches[r].norm].a;
      if (is_leaf(g[h].what)) p.norm_of_input = r;
      for (int k = 0; k < products.size(); ++k)
        if (products[k].result == h && stands_by_norm(products[k]) && groups[k].size() == 1 && norm_behind[k] < 0)
          norm_behind[k] = r, product_before[r] = k;
    }
  }
  [[gnu::cold]] constexpr void find_expressions(const node_set& free) {
    expression_finder finder(g, p.when, readers, free);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!finder.free[i] || finder.again[i]) continue;
      sequence<id> nodes = finder.at(i);
      for (const id n : nodes)
        if (expression_of[n] < 0) expression_of[n] = expressions.size();
      expression_of[i] = nodes.empty() ? -1 : expressions.size();
      if (!nodes.empty()) expressions.push(static_cast<sequence<id>&&>(nodes));
    }
    find_second();
  }
  [[gnu::cold]] constexpr void find_heads() {
    for (id i = 0; i < g.size; ++i)
      if (g[i].what == op::cached_attention && member(i))
        if (const int r = row_of[g[i].a]; r >= 0 && p.row_launches[r].result == g[i].a && readers[g[i].a] == 1)
          heads_of[i] = r, heads_of[g[i].a] = r;
  }
  // For each expression of rows the one that can be computed with it, if any: it reads all that this one reads, and else
  // only what was there before the call's first launch. Both gradients of a gate are such a pair.
  [[gnu::cold]] constexpr void find_second() {
    const sequence<sequence<id>>& all = expressions;
    second = sequence<int>(all.size(), -1);
    sequence<bool> taken(all.size(), false);
    sequence<node_set> reads;
    for (const sequence<id>& nodes : all) {
      node_set inside(g.size), from(g.size);
      for (const id n : nodes) inside.add(n);
      for (const id n : nodes)
        for (int k = 0; k < 3; ++k)
          if (const id o = g[n].operand(k); o >= 0 && !inside[o]) from.add(o);
      reads.push(static_cast<node_set&&>(from));
    }
    for (int e = 0; e < all.size(); ++e)
      for (int other = 0; other < all.size() && !taken[e] && second[e] < 0; ++other) {
        if (other == e || taken[other] || second[other] >= 0 || !p.when.by_token[all[e][0]]) continue;
        bool fits = p.when.by_token[all[other][0]] && same_shape(g[all[e][0]], g[all[other][0]]), made = false;
        for (id i = 0; i < g.size; ++i) {
          if (reads[e][i]) fits = fits && reads[other][i], made = made || member(i);
          if (reads[other][i] && !reads[e][i]) fits = fits && !member(i);
        }
        if (fits && made) second[e] = other, taken[other] = true;
      }
  }
};

}  // namespace graft::detail
