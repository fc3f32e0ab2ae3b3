// SPDX-License-Identifier: Apache-2.0
// expression: values without tokens that are computed element by element, and at most one sum over them, as one launch:
// the small algebra between sums over the tokens and the gradients that follow from them. What is inside is computed where
// it is read, in either orientation, and stored nowhere.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

namespace graft {

// How large an expression may be: a kernel evaluates it with a stack.
inline constexpr int most_expression_steps = 48, most_expression_operands = 16, most_expression_depth = 8;

namespace detail {
constexpr bool by_element(op o) { return is_pointwise(o) || o == op::transpose; }

// What it takes to evaluate a node whose operands are evaluated where `inside` says so, and read elsewhere.
struct expression_size {
  int steps = 1, operands = 0, depth = 1;
};
constexpr expression_size size_of_expression(const graph& g, const node_set& inside, id root) {
  sequence<expression_size> of(root + 1, expression_size{1, 1, 1});  // of a value that is read
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
    if (s.steps > most_expression_steps) of[i].steps = most_expression_steps + 1;
    if (s.operands > most_expression_operands) of[i].operands = most_expression_operands + 1;
  }
  return of[root];
}
}  // namespace detail

// The nodes that are computed with node `root`, which comes first; empty where that is only the root itself. `free`: nodes
// that no other launch computes.
[[gnu::cold]] constexpr sequence<id> expression_at(const graph& g, const stages& when, const sequence<int>& readers,
                                                   const node_set& free, id root) {
  sequence<id> nodes;
  if (!detail::by_element(g[root].what) && g[root].what != op::sum_to) return nodes;
  node_set inside(g.size);
  inside.add(root);
  nodes.push(root);
  for (id n = root - 1; n >= 0; --n) {
    if (!free[n] || when.by_token[n] || !detail::by_element(g[n].what)) continue;
    int read_inside = 0;
    for (id r = n + 1; r <= root; ++r)
      for (int k = 0; inside[r] && k < 3; ++k) read_inside += g[r].operand(k) == n ? 1 : 0;
    if (read_inside == 0 || read_inside != readers[n]) continue;
    inside.add(n);
    const detail::expression_size s = detail::size_of_expression(g, inside, root);
    if (s.steps > most_expression_steps || s.operands > most_expression_operands || s.depth > most_expression_depth)
      inside.in[n] = false;
    else
      nodes.push(n);
  }
  if (nodes.size() == 1) nodes.clear();
  return nodes;
}

}  // namespace graft
