// SPDX-License-Identifier: Apache-2.0
// Questions about the nodes below a node, shared by the passes.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

// Which nodes depend on a node for which `starts` holds; `stops` cuts the dependence (detach in the backward pass).
struct node_set {
  bool in[max_nodes]{};
  constexpr bool operator[](id i) const { return i >= 0 && in[i]; }
};

template <class Starts> constexpr node_set dependents(const graph& g, Starts starts, bool through_detach = true) {
  node_set s;
  for (int i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    s.in[i] = starts(v) || ((through_detach || v.what != op::detach) && (s[v.a] || s[v.b] || s[v.c]));
  }
  return s;
}
// What the outputs need. Inputs are the signature of a graph and stay, read or not: sizes follow from them.
constexpr node_set reachable(const graph& g) {
  node_set s;
  for (int i = 0; i < g.size; ++i) s.in[i] = g.n[i].what == op::input;
  for (int i = 0; i < g.outs; ++i) s.in[g.out[i].at] = true;
  for (int i = g.size - 1; i >= 0; --i)
    if (s.in[i])
      for (int k = 0; k < 3; ++k)
        if (g.n[i].operand(k) >= 0) s.in[g.n[i].operand(k)] = true;
  return s;
}
constexpr bool contains(const graph& g, id root, op what) {
  if (root < 0) return false;
  const node& v = g[root];
  return v.what == what || contains(g, v.a, what) || contains(g, v.b, what) || contains(g, v.c, what);
}

}  // namespace graft
