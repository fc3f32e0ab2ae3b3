// SPDX-License-Identifier: Apache-2.0
// Elementwise fusion: an expression is a set of pointwise ops that one launch evaluates without storing intermediate
// values. There are two kinds. Without tokens: pointwise ops and transposes, and at most one sum at the root; this is
// the algebra between a wgrad and the gradients that follow from it. With tokens: ops on values of one shape, such as a
// gated activation and its gradient; a value that depends on a single other value is recomputed by each reader, which
// costs no more than reading it.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>

namespace graft {

// Limits of an expression, which the kernel evaluates with a stack.
inline constexpr int max_expression_steps = 48, max_expression_operands = 16, max_expression_depth = 8;
inline constexpr int max_expression_depth_by_token = 6;

namespace detail {
// True for functions of element values only; dropout depends on the element's index too.
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
  node_set recomputed{};   // of these, the nodes that every reader recomputes
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
  // True where node n can be part of an expression that ends with `root`.
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
  // True where nodes of `inside` read node n, and no others do unless they recompute it.
  constexpr bool all_inside(id n, id root, const node_set& inside) const {
    int times = 0;
    for (id r = n + 1; r <= root; ++r)
      for (int k = 0; inside[r] && k < 3; ++k) times += g[r].operand(k) == n ? 1 : 0;
    if (times == 0 || recomputed[n]) return times > 0;
    return times == readers[n] && !from_memory[n] && !read_again(n);
  }
};

}  // namespace graft
