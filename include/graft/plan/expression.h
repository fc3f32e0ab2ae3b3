// SPDX-License-Identifier: Apache-2.0
// expression: values that are computed element by element as one launch, stored nowhere but at its end. Either values
// without tokens, in either orientation, and at most one sum over them: the small algebra between sums over the tokens and
// the gradients that follow from them. Or values of the same rows: a gate with its activation, and its gradient. There a
// value that follows from one other alone is computed again by each of its readers, which costs no more than reading it.
#pragma once
#include <graft/derive/stage.h>
#include <graft/derive/walk.h>

namespace graft {

// How large an expression may be: a kernel evaluates it with a stack.
inline constexpr int most_expression_steps = 48, most_expression_operands = 16, most_expression_depth = 8;
inline constexpr int most_expression_depth_by_token = 6;

namespace detail {
// A function of elements alone; what dropout does to one depends on its place.
constexpr bool of_elements(op o) { return is_pointwise(o) && o != op::dropout; }
constexpr bool by_element(op o) { return of_elements(o) || o == op::transpose; }

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

// Finds the expressions of a graph, the last ones first.
struct expression_finder {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  node_set free;           // nodes that no other launch computes
  node_set again{};        // of these, what each reader may compute for itself
  node_set from_memory{};  // what an expression reads: it is stored, whoever else could compute it

  [[gnu::cold]] constexpr expression_finder(const graph& of, const stages& s, const sequence<int>& counted,
                                            const node_set& not_taken)
      : g(of), when(s), readers(counted), free(not_taken), again(of.size), from_memory(of.size) {
    sequence<id> origin(g.size, none_id);
    for (id i = 0; i < g.size; ++i) {
      if (when.of[i] == stage::data) origin[i] = i;
      if (joins(i, i) && when.by_token[i]) origin[i] = origin_of(i, origin);
      again.in[i] = origin[i] >= 0 && origin[i] != i;
    }
    for (id r = 0; r < g.size; ++r)
      for (int k = 0; when.of[r] == stage::data && k < 3; ++k)
        if (const id o = g[r].operand(k); again[o]) again.in[o] = joins(o, r);
    for (int k = 0; k < g.outs; ++k) again.in[g.out[k].at] = false;
    for (id i = g.size - 1; i >= 0; --i)  // one reader, which is computed once: nothing is computed again
      if (again[i] && readers[i] == 1 && !read_again(i)) again.in[i] = false;
  }
  // The nodes that are computed with node `root`, which comes first; empty where that is only the root itself.
  [[gnu::cold]] constexpr sequence<id> at(id root) {
    sequence<id> nodes;
    node_set inside(g.size);
    inside.add(root);
    nodes.push(root);
    const bool by_token = when.by_token[root], sums = !by_token && g[root].what == op::sum_to;
    const int deepest = by_token ? most_expression_depth_by_token : most_expression_depth;
    for (id n = root - 1; n >= 0 && (sums || joins(root, root)); --n) {
      if (!joins(n, root) || !all_inside(n, root, inside)) continue;
      inside.add(n);
      const detail::expression_size s = detail::size_of_expression(g, inside, root);
      if (s.steps > most_expression_steps || s.operands > most_expression_operands || s.depth > deepest)
        inside.in[n] = false;
      else
        nodes.push(n);
    }
    for (const id n : nodes)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[n].operand(k); o >= 0 && !inside[o]) from_memory.add(o), again.in[o] = false;
    for (const id n : nodes)
      if (!again[n]) free.in[n] = false;
    if (nodes.size() == 1) nodes.clear();
    return nodes;
  }

 private:
  // Can node n be inside an expression that ends with `root`?
  constexpr bool joins(id n, id root) const {
    if (!free[n] || !free[root] || when.by_token[n] != when.by_token[root]) return false;
    return when.by_token[root]
               ? detail::of_elements(g[n].what) && detail::of_elements(g[root].what) && same_shape(g[n], g[root])
               : detail::by_element(g[n].what);
  }
  // The one value that node i follows from, or the node itself.
  constexpr id origin_of(id i, const sequence<id>& origin) const {
    id one = none_id;
    for (int k = 0; k < 3; ++k) {
      const id o = g[i].operand(k);
      if (o < 0 || when.of[o] != stage::data) continue;
      if (!same_shape(g[o], g[i]) || (one >= 0 && one != origin[o])) return i;
      one = origin[o];
    }
    return one < 0 ? i : one;
  }
  constexpr bool read_again(id i) const {
    for (id r = i + 1; r < g.size; ++r)
      for (int k = 0; again[r] && k < 3; ++k)
        if (g[r].operand(k) == i) return true;
    return false;
  }
  // Is node n read by the nodes inside, and by no others unless they compute it for themselves?
  constexpr bool all_inside(id n, id root, const node_set& inside) const {
    int times = 0;
    for (id r = n + 1; r <= root; ++r)
      for (int k = 0; inside[r] && k < 3; ++k) times += g[r].operand(k) == n ? 1 : 0;
    if (times == 0 || again[n]) return times > 0;
    return times == readers[n] && !from_memory[n] && !read_again(n);
  }
};

}  // namespace graft
