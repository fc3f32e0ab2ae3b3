// SPDX-License-Identifier: Apache-2.0
// Elementwise fusion: an expression is a set of pointwise ops that one launch evaluates without storing intermediate
// values. There are two kinds. Without tokens: pointwise ops and transposes, and at most one sum at the root; this is
// the algebra between a wgrad and the gradients that follow from it. With tokens: ops on values of one shape, such as a
// gated activation and its gradient; a value that depends on a single other value is recomputed by each reader, which
// costs no more than reading it.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/single_nodes.h>
#include <graft/plan/launch/wgrad.h>

namespace graft {

// Limits of an expression, which the kernel evaluates with a stack.
inline constexpr int max_expression_steps = 48, max_expression_operands = 16, max_expression_depth = 8;
inline constexpr int max_expression_depth_by_token = 6;

namespace detail {
// Returns true for functions of element values only; dropout depends on the element's index too.
constexpr bool is_elementwise_function(op o) { return is_pointwise(o) && o != op::dropout; }
constexpr bool is_elementwise_or_transpose(op o) { return is_elementwise_function(o) || o == op::transpose; }

// Steps, operands and stack depth of an expression, whose nodes are in `inside`; all other operands are read.
struct expression_size {
  int steps = 1, operands = 0, depth = 1;
};
constexpr expression_size size_of_expression(const graph& g, const node_set& inside, id root) {
  sequence<expression_size> of(root + 1, expression_size{1, 1, 1});  // initially the size of a value that is read
  for (id i = 0; i <= root; ++i) {
    if (!inside[i]) continue;
    expression_size s{1, 0, 0};
    for (int k = 0, before = 0; k < 3; ++k) {
      const id o = g[i].operand(k);
      if (o < 0) continue;
      s.steps += of[o].steps, s.operands += of[o].operands;
      s.depth = of[o].depth + before > s.depth ? of[o].depth + before : s.depth;
      ++before;
    }
    of[i] = s;
    if (s.steps > max_expression_steps) of[i].steps = max_expression_steps + 1;
    if (s.operands > max_expression_operands) of[i].operands = max_expression_operands + 1;
  }
  return of[root];
}
}  // namespace detail

// Finds the expressions of a graph. The caller asks for roots from the last node to the first.
struct expression_finder {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  node_set free;           // nodes that no launch computes yet
  node_set recomputed{};   // unclaimed nodes that every reader recomputes
  node_set from_memory{};  // operands of expressions, which must be stored

  [[gnu::cold]] constexpr expression_finder(const graph& of, const stages& s, const sequence<int>& counted,
                                            const node_set& not_taken)
      : g(of), when(s), readers(counted), free(not_taken), recomputed(of.size), from_memory(of.size) {
    sequence<id> origin(g.size, none_id);
    for (id i = 0; i < g.size; ++i) {
      if (when.of[i] == stage::call) origin[i] = i;
      if (can_join(i, i) && when.has_token_rows[i]) origin[i] = origin_of(i, origin);
      recomputed.in[i] = origin[i] >= 0 && origin[i] != i;
    }
    for (id r = 0; r < g.size; ++r)
      for (int k = 0; when.of[r] == stage::call && k < 3; ++k)
        if (const id o = g[r].operand(k); recomputed[o]) recomputed.in[o] = can_join(o, r);
    for (int k = 0; k < g.outs; ++k) recomputed.in[g.out[k].at] = false;
    for (id i = g.size - 1; i >= 0; --i)  // a node with one reader that is computed once needs no recomputation
      if (recomputed[i] && readers[i] == 1 && !read_again(i)) recomputed.in[i] = false;
  }
  // The nodes of the expression that ends with `root`, which is the first entry; empty where there is no other node.
  [[gnu::cold]] constexpr sequence<id> at(id root) {
    sequence<id> nodes;
    node_set inside(g.size);
    inside.add(root);
    nodes.push(root);
    const bool has_token_rows = when.has_token_rows[root], sums = !has_token_rows && g[root].what == op::sum_to;
    const int deepest = has_token_rows ? max_expression_depth_by_token : max_expression_depth;
    for (id n = root - 1; n >= 0 && (sums || can_join(root, root)); --n) {
      if (!can_join(n, root) || !all_inside(n, root, inside)) continue;
      inside.add(n);
      const detail::expression_size s = detail::size_of_expression(g, inside, root);
      if (s.steps > max_expression_steps || s.operands > max_expression_operands || s.depth > deepest)
        inside.in[n] = false;
      else
        nodes.push(n);
    }
    for (const id n : nodes)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[n].operand(k); o >= 0 && !inside[o]) from_memory.add(o), recomputed.in[o] = false;
    for (const id n : nodes)
      if (!recomputed[n]) free.in[n] = false;
    if (nodes.size() == 1) nodes.clear();
    return nodes;
  }

 private:
  // Returns true if node n can be part of an expression that ends with `root`.
  constexpr bool can_join(id n, id root) const {
    if (!free[n] || !free[root] || when.has_token_rows[n] != when.has_token_rows[root]) return false;
    return when.has_token_rows[root] ? detail::is_elementwise_function(g[n].what) &&
                                           detail::is_elementwise_function(g[root].what) && same_shape(g[n], g[root])
                                     : detail::is_elementwise_or_transpose(g[n].what);
  }
  // The single value that node i depends on through pointwise ops, or i itself.
  constexpr id origin_of(id i, const sequence<id>& origin) const {
    id one = none_id;
    for (int k = 0; k < 3; ++k) {
      const id o = g[i].operand(k);
      if (o < 0 || when.of[o] != stage::call) continue;
      if (!same_shape(g[o], g[i]) || (one >= 0 && one != origin[o])) return i;
      one = origin[o];
    }
    return one < 0 ? i : one;
  }
  constexpr bool read_again(id i) const {
    for (id r = i + 1; r < g.size; ++r)
      for (int k = 0; recomputed[r] && k < 3; ++k)
        if (g[r].operand(k) == i) return true;
    return false;
  }
  // Returns true if nodes of `inside` read node n, and no others do unless they recompute it.
  constexpr bool all_inside(id n, id root, const node_set& inside) const {
    int times = 0;
    for (id r = n + 1; r <= root; ++r)
      for (int k = 0; inside[r] && k < 3; ++k) times += g[r].operand(k) == n ? 1 : 0;
    if (times == 0 || recomputed[n]) return times > 0;
    return times == readers[n] && !from_memory[n] && !read_again(n);
  }
};

// An expression, or a pair of them, as one launch.
struct expression_launch {
  struct capabilities {
    bool fused = false;  // pointwise operations are fused
    // Returns true if the kernel of a gate's gradients also computes their two column wgrads; otherwise each has its
    // own.
    target_function<bool(const graph&, id, const size_values&, dtype, const target&)> gate_wgrad_is_fused{};
  };
  struct work {
    sequence<sequence<id>> expressions;
    sequence<int> second;  // by expression: the other expression of its launch; -1: none
  };

  id root = none_id;
  id paired_root = none_id;       // the second value that it computes from the operands of the first
  int gate_wgrads[2] = {-1, -1};  // column wgrads of these two values, possibly fused: indices of wgrad_launch

  constexpr id anchor() const { return root; }
  constexpr const char* name(const graph& g) const { return launch_name_of(g[root]); }
  template <class F> constexpr void each_wgrad(int, F f) const {
    for (const int k : gate_wgrads)
      if (k >= 0) f(k);
  }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    const auto& fused = in.p.to.template can<expression_launch>().gate_wgrad_is_fused;
    const bool separate = gate_wgrads[0] >= 0 && (!fused || !fused(in.g, root, in.s, in.type, in.p.to));
    return nodes_launch::kernels_of(in, root) + (separate ? 2 : 0);
  }

  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    if (!by.template can<expression_launch>().fused) return;
    auto& all = by.template work<expression_launch>().expressions;
    expression_finder finder(by.g, by.p.when, by.readers, by.free_nodes());
    for (id i = by.g.size - 1; i >= 0; --i) {
      if (!finder.free[i] || finder.recomputed[i]) continue;
      sequence<id> nodes = finder.at(i);
      if (!nodes.empty()) all.push(static_cast<sequence<id>&&>(nodes));
    }
    // A value that some expressions recompute is stored by a launch of its own if a later one found too many steps in
    // it and reads it from memory.
    for (int e = 0; e < all.size(); ++e)
      for (const id n : all[e])
        if (n == all[e][0] || (by.is_free(n) && !finder.from_memory[n])) by.template claim<expression_launch>(n, e);
    find_pairs(by);
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id i) {
    const auto& w = by.template work<expression_launch>();
    if (w.expressions[index][0] != i || !by.computed(w.expressions[index])) return;
    auto& all = by.p.template all<expression_launch>();
    by.template open<expression_launch>(all.size());
    all.push({i});
    add_nodes(by, index);
    const int second = w.second[index];
    if (second < 0 || by.p.launch_of[w.expressions[second][0]] >= 0) return;
    all.back().paired_root = w.expressions[second][0];
    add_nodes(by, second);
    all.back().add_gate_wgrads(by);
  }

 private:
  // Pairs expressions with rows into one launch: the second reads all that the first reads, and otherwise only call
  // inputs and precomputed values. The two gradients of a gate (SwiGLU, GeGLU) are such a pair.
  template <class Planner> [[gnu::cold]] static constexpr void find_pairs(Planner& by) {
    const graph& g = by.g;
    const sequence<sequence<id>>& all = by.template work<expression_launch>().expressions;
    sequence<int>& second = by.template work<expression_launch>().second;
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
        if (other == e || taken[other] || second[other] >= 0 || !by.p.when.has_token_rows[all[e][0]]) continue;
        bool fits = by.p.when.has_token_rows[all[other][0]] && same_shape(g[all[e][0]], g[all[other][0]]), made = false;
        for (id i = 0; i < g.size; ++i) {
          if (reads[e][i]) fits = fits && reads[other][i], made = made || by.member(i);
          if (reads[other][i] && !reads[e][i]) fits = fits && !by.member(i);
        }
        if (fits && made) second[e] = other, taken[other] = true;
      }
  }
  // A node that every reader recomputes belongs to the first expression.
  template <class Planner> [[gnu::cold]] static constexpr void add_nodes(Planner& by, int e) {
    const sequence<id>& nodes = by.template work<expression_launch>().expressions[e];
    for (int k = nodes.size() - 1; k >= 0; --k)
      by.add(nodes[k], launch_slot::standalone, by.template claimed<expression_launch>(nodes[k]) == e);
  }
  // The column wgrads of both gradients of a SiLU gate (DoRA), where these gradients have no readers but the wgrad and
  // the product with its factor. The kernel of the pair can compute them.
  template <class Planner> [[gnu::cold]] constexpr void add_gate_wgrads(Planner& by) {
    const graph& g = by.g;
    const auto& sums = by.p.template all<wgrad_launch>();
    const id both[2] = {root, paired_root};
    int found[2] = {-1, -1};
    for (int b = 0; b < 2; ++b)
      for (int k = 0; k < sums.size(); ++k)
        if (const wgrad_launch& s = sums[k];
            s.by_column && s.scaled >= 0 && s.left == both[b] && by.readers[both[b]] == 2 && is_leaf(g[s.right].what))
          found[b] = k;
    bool by_silu = false;
    by.each_node([&](id n) { by_silu = by_silu || g[n].what == op::silu; });
    if (found[0] < 0 || found[1] < 0 || !by_silu) return;
    for (int b = 0; b < 2; ++b) sums[gate_wgrads[b] = found[b]].add_nodes(by);
  }
};

}  // namespace graft
