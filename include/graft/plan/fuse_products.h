// SPDX-License-Identifier: Apache-2.0
// fuse for a GPU: a product takes in what its slots have room for, what else can be joined is (sums over tokens, norms with
// their factors, expressions), and every other node is a launch of its own.
#pragma once
#include <graft/plan/beside.h>
#include <graft/plan/expression.h>
#include <graft/plan/fuse.h>
#include <graft/plan/norm_between.h>
#include <graft/plan/together.h>

namespace graft {

namespace detail {

struct product_planner : planner {
  [[gnu::cold]] constexpr void gather() {
    whole_nodes();
    sequence<int> readers = count_readers(g, p.live);
    sequence<int> dropped_of(g.size, -1);  // the narrow product with dropout that takes a node in: nobody else does
    if (p.to.takes_dropout) p.dropped = dropped_products(g, p.when, readers, dropped_of);
    for (id i = 0; i < g.size; ++i) readers[i] += dropped_of[i] >= 0 ? 1 : 0;
    sequence<int> chain_of(g.size, -1);  // the same for a chain of small products
    if (p.to.largest_chained_side > 0) p.chained = chained_products(g, p.when, readers, chain_of);
    sequence<int> part_of(g.size, -1);  // the product that takes a node in
    sequence<product_slots> found;
    sum_readers sums(g.size);
    sequence<int> sum_of(g.size, -1);
    if (p.to.sums_tokens && p.to.gathers == target::work::by_products) find_sums(readers, dropped_of, sums, sum_of);
    for (id i = g.size - 1; i >= 0; --i) {
      if (p.to.gathers != target::work::by_products || !member(i) || part_of[i] >= 0 || sum_of[i] >= 0 ||
          dropped_of[i] >= 0 || chain_of[i] >= 0)
        continue;
      const product_slots s = product_at(g, p.when, readers, sums, i, p.to);
      if (!s.found) continue;
      for (const id inside : s.inside) part_of[inside] = found.size();
      found.push(s);
    }
    for (int k = 0; k < p.sums.size(); ++k)
      for (id i = 0; i < g.size; ++i)
        if (member(i) && part_of[i] < 0 && sum_of[i] < 0 && dropped_of[i] < 0 && take_scaled(g, p.when, i, p.sums[k]))
          sum_of[i] = k;
    const sequence<int> runs_beside = sums_beside(g, found, p.sums, p.to.sums_beside);
    const sequence<sequence<int>> groups = products_together(found, p.to.joins_products);
    sequence<id> gates(found.size(), none_id);  // of the first product of a launch
    for (int k = 0; p.to.joins_gates && k < found.size(); ++k)
      if (groups[k].size() == 2 && groups[k][0] == k)
        if (const id gate = gate_of(g, readers, found[k], found[groups[k][1]]);
            gate >= 0 && member(gate) && part_of[gate] < 0)
          gates[k] = gate, part_of[gate] = k;
    node_set free(g.size);
    for (id i = 0; i < g.size; ++i)
      free.in[i] = member(i) && part_of[i] < 0 && sum_of[i] < 0 && dropped_of[i] < 0 && chain_of[i] < 0;
    sequence<int> row_of(g.size, -1);  // the row launch that takes a node in
    if (p.to.joins_rows && p.to.gathers == target::work::by_products) find_row_launches(readers, free, row_of);
    sequence<int> norm_behind(found.size(), -1), product_before(p.row_launches.size(), -1);
    for (int r = 0; p.to.carries_norms && r < p.row_launches.size(); ++r) {
      if (!only_products_read(g, p.row_launches[r], readers, found)) continue;
      const id h = g[p.row_launches[r].norm].a;
      if (is_leaf(g[h].what)) p.norm_of_input = r;
      for (int k = 0; k < found.size(); ++k)
        if (found[k].result == h && stands_by_norm(found[k]) && groups[k].size() == 1 && norm_behind[k] < 0)
          norm_behind[k] = r, product_before[r] = k;
    }
    sequence<sequence<id>> expressions;
    sequence<int> expression_of(g.size, -1);
    if (p.to.joins_elements && p.to.gathers == target::work::by_products) {
      expression_finder finder(g, p.when, readers, free);
      for (id i = g.size - 1; i >= 0; --i) {
        if (!finder.free[i] || finder.again[i]) continue;
        sequence<id> nodes = finder.at(i);
        for (const id n : nodes)
          if (expression_of[n] < 0) expression_of[n] = expressions.size();
        expression_of[i] = nodes.empty() ? -1 : expressions.size();
        if (!nodes.empty()) expressions.push(static_cast<sequence<id>&&>(nodes));
      }
    }
    const sequence<int> second = second_expressions(expressions);
    sequence<int> heads_of(g.size, -1);  // attention: the row launch whose result nothing else reads
    for (id i = 0; p.to.takes_heads != nullptr && i < g.size; ++i)
      if (g[i].what == op::cached_attention && member(i))
        if (const int r = row_of[g[i].a]; r >= 0 && p.row_launches[r].result == g[i].a && readers[g[i].a] == 1)
          heads_of[i] = r, heads_of[g[i].a] = r;
    // In the order of the nodes; what reads a value that a later product keeps for it waits for that product.
    for (int before = -1; before != p.launches.size();) {
      before = p.launches.size();
      for (id i = 0; i < g.size; ++i) {
        if (!member(i) || g[i].what == op::reshape || p.launch_of[i] >= 0) continue;  // a reshaped value: no launch
        const int product = part_of[i], sum = sum_of[i];
        if (const int d = dropped_of[i]; d >= 0) {
          if (p.dropped[d].result == i && computed_before(p.dropped[d].inside(), dropped_of, d)) add_dropped(d);
        } else if (const int c = chain_of[i]; c >= 0) {
          if (p.chained[c].result == i && computed_before(p.chained[c].inside(), chain_of, c)) add_chain(c);
        } else if (product >= 0 && found[product].result == i) {
          bool ready = true;
          for (const int member : groups[product]) {
            ready = ready && computed_before(found[member].inside, part_of, member);
            for (int k = 0; k < p.sums.size(); ++k)
              if (runs_beside[k] == member) ready = ready && computed_before(p.sums[k].product, part_of, member);
          }
          if (!ready) continue;
          open(family::product, i);
          p.launches.back().product = p.products.size(), p.launches.back().together = groups[product].size() - 1;
          for (const int member : groups[product]) add_product(found[member], runs_beside, member);
          if (const id gate = gates[groups[product][0]]; gate >= 0)
            p.launches.back().gated = gate, add(gate, slot::post);
          if (const int norm = norm_behind[groups[product][0]]; norm >= 0) {
            p.launches.back().norm = norm;
            for (const id n : p.row_launches[norm].inside) add(n, slot::post);
          }
        } else if (sum >= 0 && (p.sums[sum].result == i || p.sums[sum].scaled == i)) {
          if (runs_beside[sum] < 0 && computed_before(p.sums[sum].product, part_of, -1)) add_sum(p.sums[sum], sum);
        } else if (const int e = expression_of[i]; e >= 0) {
          if (expressions[e][0] == i && computed_before(expressions[e])) {
            open(family_of(g[i]), i);
            for (int k = expressions[e].size() - 1; k >= 0; --k)
              add(expressions[e][k], slot::alone, expression_of[expressions[e][k]] == e);
            if (second[e] >= 0 && p.launch_of[expressions[second[e]][0]] < 0) {
              const sequence<id>& with = expressions[second[e]];
              p.launches.back().also = with[0];
              for (int k = with.size() - 1; k >= 0; --k) add(with[k], slot::alone, expression_of[with[k]] == second[e]);
              add_sums_of_both(readers);
            }
          }
        } else if (const int heads = heads_of[i]; heads >= 0) {
          const sequence<id>& inside = p.row_launches[heads].inside;
          if (p.row_launches[heads].result == i || !computed_before(inside, row_of, heads)) continue;
          open(family::attention, i);
          p.launches.back().rows = heads;
          for (const id n : inside) add(n, slot::pre);
          add(i, slot::alone);
        } else if (const int rows = row_of[i]; rows >= 0) {
          if (product_before[rows] < 0 && p.row_launches[rows].result == i &&
              computed_before(p.row_launches[rows].inside, row_of, rows))
            add_row_launch(p.row_launches[rows], rows);
        } else if (product < 0 && sum < 0 && computed_before(i, part_of, -1)) {
          open(family_of(g[i]), i);
          add(i, slot::alone);
        }
      }
    }
  }
  // For each expression of rows the one that can be computed with it, if any: it reads all that this one reads, and else
  // only what was there before the call's first launch. Both gradients of a gate are such a pair.
  [[gnu::cold]] constexpr sequence<int> second_expressions(const sequence<sequence<id>>& all) const {
    sequence<int> second(all.size(), -1);
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
    return second;
  }
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
  [[gnu::cold]] constexpr void add_dropped(int index) {
    const dropped_product& d = p.dropped[index];
    open(family::product, d.product);
    p.launches.back().dropped = index;
    for (const id i : d.inside())
      add(i, i == d.product ? (d.how == dropped_product::form::sum ? slot::reduce : slot::product)
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
  [[gnu::cold]] constexpr void find_sums(const sequence<int>& readers, const sequence<int>& taken, sum_readers& sums,
                                         sequence<int>& sum_of) {
    for (id i = g.size - 1; i >= 0; --i) {
      if (!member(i) || sum_of[i] >= 0 || taken[i] >= 0) continue;
      const token_sum s = sum_at(g, p.when, readers, i);
      if (!s.found) continue;
      sum_of[s.result] = sum_of[s.product] = p.sums.size();
      sums.add(s);
      p.sums.push(s);
    }
  }
  [[gnu::cold]] constexpr void find_row_launches(const sequence<int>& readers, node_set& free, sequence<int>& row_of) {
    for (id i = g.size - 1; i >= 0; --i) {
      if (!free[i]) continue;
      row_launch r = row_launch_at(g, p.when, readers, free, i);
      if (!r.found()) continue;
      for (const id n : r.inside) row_of[n] = p.row_launches.size(), free.in[n] = false;
      p.row_launches.push(static_cast<row_launch&&>(r));
    }
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
  [[gnu::cold]] constexpr void add_sums_of_both(const sequence<int>& readers) {
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
  [[gnu::cold]] constexpr void add_product(const product_slots& s, const sequence<int>& runs_beside, int index) {
    p.products.push(s);
    node_set inside(g.size);
    for (const id i : s.inside) inside.add(i);
    const id x = s.pre >= 0 ? s.scaled : s.x;
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
};

}  // namespace detail

// target::gather_products of what runs by products.
[[gnu::cold]] constexpr void gather_products(const detail::planner& of) { detail::product_planner{of}.gather(); }

}  // namespace graft
