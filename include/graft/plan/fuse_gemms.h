// SPDX-License-Identifier: Apache-2.0
// fuse() for a GPU: node_groups assigns each node to a GEMM, wgrad, norm, matrix chain or expression, and gemm_planner
// emits one launch per group in an order in which the inputs of every launch are computed before it.
#pragma once
#include <graft/plan/expression.h>
#include <graft/plan/fuse.h>
#include <graft/plan/fused_norm.h>
#include <graft/plan/fused_wgrad.h>
#include <graft/plan/grouped.h>

namespace graft {

namespace detail {

// A node belongs to the first group that finds it; a node without a group is a launch of its own.
struct node_groups : planner {
  sequence<int> readers;
  // By node: the index of its group, or -1.
  sequence<int> dropout_gemm_of, chain_of, product_of, wgrad_of, stack_of, row_of, expression_of;
  sequence<int>
      attention_heads_of;  // attention nodes and their qkv: the rowwise launch whose result only attention reads
  sequence<gemm_slots> products;
  // By product: the members of its grouped GEMM. By the first member: the gate, and the norm in the epilogue.
  sequence<sequence<int>> groups;
  sequence<id> gates;
  sequence<int> epilogue_norm;
  sequence<int> wgrad_host;  // by wgrad: the product whose launch it is fused into; -1: none
  sequence<int> norm_host;   // by rowwise launch: the product whose epilogue it is; -1: none
  sequence<sequence<id>> expressions;
  sequence<int> second;  // by expression: the other expression of its launch; -1: none

  constexpr explicit node_groups(const planner& of)
      : planner(of),
        readers(count_readers(g, p.live)),
        dropout_gemm_of(g.size, -1),
        chain_of(g.size, -1),
        product_of(g.size, -1),
        wgrad_of(g.size, -1),
        stack_of(g.size, -1),
        row_of(g.size, -1),
        expression_of(g.size, -1),
        attention_heads_of(g.size, -1) {}

  // A target that runs by nodes has only dropout GEMMs and matrix chains as groups.
  [[gnu::cold]] constexpr void find() {
    if (p.to.fuses_dropout) p.dropout_gemms = find_dropout_gemms(g, p.when, readers, dropout_gemm_of);
    for (id i = 0; i < g.size; ++i)
      readers[i] += dropout_gemm_of[i] >= 0 ? 1 : 0;  // the extra reader keeps other groups from taking it
    if (p.to.max_chain_size > 0) p.chains = find_matrix_chains(g, p.when, readers, chain_of);
    if (p.to.granularity != target::work::by_products) return;
    find_products();
    find_gates();
    node_set free(g.size);
    for (id i = 0; i < g.size; ++i) free.in[i] = is_free(i);
    if (p.to.max_stack_size > 0) p.stacks = find_matrix_stacks(g, p.when, free, stack_of);
    for (id i = 0; i < g.size; ++i) free.in[i] = free[i] && stack_of[i] < 0;
    if (p.to.fuses_rowwise) find_rowwise_launches(free);
    epilogue_norm = sequence<int>(products.size(), -1), norm_host = sequence<int>(p.rowwise_launches.size(), -1);
    if (p.to.fuses_norms) find_norms();
    if (p.to.fuses_elementwise) find_expressions(free);
    if (p.to.fuses_heads) find_heads();
  }

 private:
  constexpr bool is_free(id i) const {
    return member(i) && product_of[i] < 0 && wgrad_of[i] < 0 && dropout_gemm_of[i] < 0 && chain_of[i] < 0;
  }
  [[gnu::cold]] constexpr void find_products() {
    wgrad_readers sums(g.size);
    if (p.to.has_wgrad) find_wgrads(sums);
    const node_set shrinks = dropout_shrinks(g, p.dropout_gemms);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!is_free(i)) continue;
      const gemm_slots s = gemm_at(g, p.when, readers, sums, shrinks, i, p.to);
      if (!s.found) continue;
      products.push(s), mark_group_nodes(products.size() - 1);
    }
    products = with_dropout_shrinks(g, readers, p.dropout_gemms, static_cast<sequence<gemm_slots>&&>(products));
    for (int k = 0; k < products.size(); ++k) mark_group_nodes(k);
    for (int k = 0; k < p.sums.size(); ++k)
      for (id i = 0; i < g.size; ++i)
        if (is_free(i) && absorb_scaled_operand(g, p.when, i, p.sums[k])) wgrad_of[i] = k;
    wgrad_host = wgrad_fusion(g, products, p.sums, p.to.wgrad_fusion);
    groups = group_products(products, p.to.max_grouped_gemms);
  }
  [[gnu::cold]] constexpr void mark_group_nodes(int k) {
    for (const id inside : products[k].inside) product_of[inside] = k;
    for (const id before_gemm : {products[k].input_rotation, products[k].gate})
      if (before_gemm >= 0) product_of[before_gemm] = k;
  }
  [[gnu::cold]] constexpr void find_wgrads(wgrad_readers& sums) {
    for (id i = g.size - 1; i >= 0; --i) {
      if (!member(i) || wgrad_of[i] >= 0 || dropout_gemm_of[i] >= 0) continue;
      const wgrad_sum s = wgrad_at(g, p.when, readers, i);
      if (!s.found) continue;
      wgrad_of[s.result] = wgrad_of[s.product] = p.sums.size();
      sums.add(s);
      p.sums.push(s);
    }
  }
  [[gnu::cold]] constexpr void find_gates() {
    gates = sequence<id>(products.size(), none_id);
    for (int k = 0; p.to.fuses_gates && k < products.size(); ++k)
      if (groups[k].size() == 2 && groups[k][0] == k)
        if (const id gate = gate_of(g, readers, products[k], products[groups[k][1]]);
            gate >= 0 && member(gate) && product_of[gate] < 0)
          gates[k] = gate, product_of[gate] = k;
  }
  [[gnu::cold]] constexpr void find_rowwise_launches(node_set& free) {
    for (id i = g.size - 1; i >= 0; --i) {
      if (!free[i]) continue;
      rowwise_launch r = rowwise_launch_at(g, p.when, readers, free, i);
      if (!r.found()) continue;
      for (const id n : r.inside) row_of[n] = p.rowwise_launches.size(), free.in[n] = false;
      p.rowwise_launches.push(static_cast<rowwise_launch&&>(r));
    }
  }
  [[gnu::cold]] constexpr void find_norms() {
    for (int r = 0; r < p.rowwise_launches.size(); ++r) {
      if (!only_products_read(g, p.rowwise_launches[r], readers, products)) continue;
      const id h = g[p.rowwise_launches[r].norm].a;
      if (is_leaf(g[h].what)) p.input_norm = r;
      for (int k = 0; k < products.size(); ++k)
        if (products[k].result == h && can_fuse_norm(products[k]) && groups[k].size() == 1 && epilogue_norm[k] < 0)
          epilogue_norm[k] = r, norm_host[r] = k;
    }
  }
  [[gnu::cold]] constexpr void find_expressions(const node_set& free) {
    expression_finder finder(g, p.when, readers, free);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!finder.free[i] || finder.recomputed[i]) continue;
      sequence<id> nodes = finder.at(i);
      for (const id n : nodes)
        if (expression_of[n] < 0) expression_of[n] = expressions.size();
      expression_of[i] = nodes.empty() ? -1 : expressions.size();
      if (!nodes.empty()) expressions.push(static_cast<sequence<id>&&>(nodes));
    }
    find_pairs();
  }
  [[gnu::cold]] constexpr void find_heads() {
    for (id i = 0; i < g.size; ++i)
      if (g[i].what == op::cached_attention && member(i))
        if (const int r = row_of[g[i].a]; r >= 0 && p.rowwise_launches[r].result == g[i].a && readers[g[i].a] == 1)
          attention_heads_of[i] = r, attention_heads_of[g[i].a] = r;
  }
  // Pairs expressions with rows into one launch: the second reads all that the first reads, and otherwise only call
  // inputs and precomputed values. The two gradients of a gate (SwiGLU, GeGLU) are such a pair.
  [[gnu::cold]] constexpr void find_pairs() {
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
        if (other == e || taken[other] || second[other] >= 0 || !p.when.has_token_rows[all[e][0]]) continue;
        bool fits = p.when.has_token_rows[all[other][0]] && same_shape(g[all[e][0]], g[all[other][0]]), made = false;
        for (id i = 0; i < g.size; ++i) {
          if (reads[e][i]) fits = fits && reads[other][i], made = made || member(i);
          if (reads[other][i] && !reads[e][i]) fits = fits && !member(i);
        }
        if (fits && made) second[e] = other, taken[other] = true;
      }
  }
};

struct gemm_planner : node_groups {
  using node_groups::node_groups;

  // Emits launches in node order. Passes are repeated until nothing is added, because a group whose inputs a later
  // launch computes has to wait for it.
  [[gnu::cold]] constexpr void gather() {
    mark_nodes_whole();
    find();
    for (int before = -1; before != p.launches.size();) {
      before = p.launches.size();
      for (id i = 0; i < g.size; ++i)
        if (member(i) && g[i].what != op::reshape && p.launch_of[i] < 0) launch_containing(i);
    }
  }
  // Emits the launch whose result is node i if its inputs are computed.
  [[gnu::cold]] constexpr void launch_containing(id i) {
    if (const int d = dropout_gemm_of[i]; d >= 0) {
      if (p.dropout_gemms[d].result == i && computed_before(p.dropout_gemms[d].inside, dropout_gemm_of, d))
        add_dropout_gemm(d);
    } else if (const int c = chain_of[i]; c >= 0) {
      if (p.chains[c].result == i && computed_before(p.chains[c].inside(), chain_of, c)) add_chain(c);
    } else if (const int k = product_of[i]; k >= 0 && products[k].result == i) {
      if (inputs_ready(groups[k])) add_products(groups[k], i);
    } else if (const int s = wgrad_of[i]; s >= 0 && (p.sums[s].result == i || p.sums[s].scaled == i)) {
      if (wgrad_host[s] < 0 && computed_before(p.sums[s].product, product_of, -1)) add_wgrad(p.sums[s], s);
    } else if (const int m = stack_of[i]; m >= 0) {
      if (computed_before(p.stacks[m].inside, stack_of, m)) add_stack(m);
    } else if (const int e = expression_of[i]; e >= 0) {
      if (expressions[e][0] == i && computed_before(expressions[e])) add_expression(e);
    } else if (const int h = attention_heads_of[i]; h >= 0) {
      if (p.rowwise_launches[h].result != i && computed_before(p.rowwise_launches[h].inside, row_of, h))
        add_attention(i, h);
    } else if (const int r = row_of[i]; r >= 0) {
      if (norm_host[r] < 0 && p.rowwise_launches[r].result == i &&
          computed_before(p.rowwise_launches[r].inside, row_of, r))
        add_rowwise_launch(p.rowwise_launches[r], r);
    } else if (k < 0 && s < 0 && computed_before(i, product_of, -1)) {
      open(launch_kind_of(g[i]), i);
      add(i, slot::standalone);
    }
  }

 private:
  // True where all operands of node i from other launches are computed; `own` is the group of node i.
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
  constexpr bool computed_before(const sequence<id>& inside) const {  // for nodes that other groups may contain too
    sequence<int> own(g.size, -1);
    for (const id i : inside) own[i] = 0;
    return computed_before(inside, own, 0);
  }
  [[gnu::cold]] constexpr bool inputs_ready(const sequence<int>& group) const {
    for (const int member : group) {
      if (!computed_before(products[member].inside, product_of, member)) return false;
      for (const id before_gemm : {products[member].input_rotation, products[member].gate})
        if (before_gemm >= 0 && !computed_before(before_gemm, product_of, member)) return false;
      for (int k = 0; k < p.sums.size(); ++k)
        if (wgrad_host[k] == member && !computed_before(p.sums[k].product, product_of, member)) return false;
    }
    return true;
  }
  [[gnu::cold]] constexpr void add_products(const sequence<int>& group, id result) {
    open(launch_kind::gemm, result);
    p.launches.back().product = p.products.size(), p.launches.back().grouped = group.size() - 1;
    for (const int member : group) add_product(member);
    if (const id gate = gates[group[0]]; gate >= 0) p.launches.back().gated = gate, add(gate, slot::epilogue);
    if (epilogue_norm[group[0]] < 0) return;
    p.launches.back().norm = epilogue_norm[group[0]];
    for (const id n : p.rowwise_launches[epilogue_norm[group[0]]].inside) add(n, slot::epilogue);
  }
  [[gnu::cold]] constexpr void add_product(int index) {
    const gemm_slots& s = products[index];
    p.products.push(s);
    node_set inside(g.size);
    for (const id i : s.inside) inside.add(i);
    const id x = s.prologue >= 0 ? s.scaled : s.input_rotation >= 0 ? s.input_rotation : s.x;
    for (const id before_gemm : {s.gate, s.input_rotation})
      if (before_gemm >= 0) add(before_gemm, slot::prologue);
    for (id i = 0; i < g.size; ++i) {
      if (!inside[i]) continue;
      const node& v = g[i];
      const bool base = v.what == op::matmul && v.b == s.weight && v.a == x;
      const bool branch = v.what == op::fold || v.what == op::repeat || v.what == op::matmul;
      add(i, base ? slot::mainloop : branch ? slot::branch : i == s.scaled ? slot::prologue : slot::epilogue);
      if (base && p.launches.back().product == p.products.size() - 1) p.launches.back().anchor = i;
    }
    for (int k = 0, n = 0; k < p.sums.size(); ++k) {
      if (wgrad_host[k] != index) continue;
      p.launches.back().fused_wgrads[n++] = k;
      add(p.sums[k].product, slot::reduce);
      if (p.sums[k].result != p.sums[k].product) add(p.sums[k].result, slot::epilogue);
    }
  }
  [[gnu::cold]] constexpr void add_dropout_gemm(int index) {
    const dropout_gemm& d = p.dropout_gemms[index];
    open(launch_kind::gemm, d.terms[0].product);
    p.launches.back().dropout_gemms = index;
    for (const id i : d.inside)
      add(i, g[i].what == op::matmul ? (d.form_kind == dropout_gemm::form::sum ? slot::reduce : slot::mainloop)
             : d.form_kind == dropout_gemm::form::expand ? slot::epilogue
                                                         : slot::prologue);
  }
  [[gnu::cold]] constexpr void add_chain(int index) {
    const matrix_chain& c = p.chains[index];
    open(launch_kind::gemm, c.result);
    p.launches.back().chains = index;
    for (const id i : c.inside())
      add(i, i == c.result ? slot::mainloop : i == c.left_sum || i == c.right_sum ? slot::reduce : slot::prologue);
  }
  [[gnu::cold]] constexpr void add_stack(int index) {
    const matrix_stack& s = p.stacks[index];
    open(launch_kind::gemm, s.inside[s.inside.size() - 1]);
    p.launches.back().stack = index;
    for (const id i : s.inside) add(i, slot::standalone);
  }
  [[gnu::cold]] constexpr void add_attention(id i, int heads) {
    open(launch_kind::attention, i);
    p.launches.back().rows = heads;
    for (const id n : p.rowwise_launches[heads].inside) add(n, slot::prologue);
    add(i, slot::standalone);
  }
  [[gnu::cold]] constexpr void add_expression(int e) {
    open(launch_kind_of(g[expressions[e][0]]), expressions[e][0]);
    add_expression_nodes(e);
    if (second[e] < 0 || p.launch_of[expressions[second[e]][0]] >= 0) return;
    p.launches.back().paired_root = expressions[second[e]][0];
    add_expression_nodes(second[e]);
    add_gate_wgrads();
  }
  [[gnu::cold]] constexpr void add_expression_nodes(int e) {
    for (int k = expressions[e].size() - 1; k >= 0; --k)
      add(expressions[e][k], slot::standalone, expression_of[expressions[e][k]] == e);
  }
  [[gnu::cold]] constexpr void add_rowwise_launch(const rowwise_launch& r, int index) {
    const bool norm = r.norm >= 0;
    open(norm ? launch_kind::rowwise : launch_kind::elementwise, norm ? r.norm : r.result);
    p.launches.back().rows = index;
    for (const id i : r.inside)
      add(i, i == p.launches.back().anchor ? slot::standalone : norm ? slot::epilogue : slot::prologue);
  }
  [[gnu::cold]] constexpr void add_wgrad(const wgrad_sum& s, int index) {
    open(launch_kind::gemm, s.product);
    p.launches.back().sum = index;
    add(s.product, slot::reduce);
    if (s.result != s.product) add(s.result, slot::epilogue);
    if (s.scaled >= 0) add(s.scaled, slot::prologue);
  }
  // The column wgrads of both gradients of a SiLU gate (DoRA), where these gradients have no readers but the wgrad and
  // the product with its factor. The kernel of the pair can compute them.
  [[gnu::cold]] constexpr void add_gate_wgrads() {
    launch& l = p.launches.back();
    const id both[2] = {l.anchor, l.paired_root};
    int found[2] = {-1, -1};
    for (int b = 0; b < 2; ++b)
      for (int k = 0; k < p.sums.size(); ++k)
        if (const wgrad_sum& s = p.sums[k];
            s.by_column && s.scaled >= 0 && s.left == both[b] && readers[both[b]] == 2 && is_leaf(g[s.right].what))
          found[b] = k;
    bool by_silu = false;
    for (int n = l.first; n < l.first + l.count; ++n) by_silu = by_silu || g[p.nodes[n]].what == op::silu;
    if (found[0] < 0 || found[1] < 0 || !by_silu) return;
    for (int b = 0; b < 2; ++b) {
      const wgrad_sum& s = p.sums[l.gate_wgrads[b] = found[b]];
      add(s.product, slot::reduce), add(s.result, slot::epilogue), add(s.scaled, slot::prologue);
    }
  }
};

}  // namespace detail

// The value of target::fuse_gemms for targets that run by products.
[[gnu::cold]] constexpr void fuse_gemms(const detail::planner& of) { detail::gemm_planner{of}.gather(); }

}  // namespace graft
