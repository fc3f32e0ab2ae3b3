// SPDX-License-Identifier: Apache-2.0
// Node sets that the passes share: the nodes that a value is computed from, those that depend on a node, and those that
// the outputs need.
#pragma once
#include <graft/core/sequence.h>
#include <graft/graph/graph.h>

namespace graft {

struct node_set {
  sequence<bool> in;
  constexpr node_set() = default;
  constexpr explicit node_set(int nodes) : in(nodes) {}
  constexpr bool operator[](id i) const { return i >= 0 && i < in.size() && in[i]; }
  constexpr void add(id i) { in[i] = true; }
};

// Finds the nodes that depend on a node for which `starts` holds. With through_detach = false a detach() ends the
// dependence, as it stops gradients.
template <class Starts> constexpr node_set dependents(const graph& g, Starts starts, bool through_detach = true) {
  node_set s(g.size);
  bool* const in = s.in.data();
  for (id i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    in[i] = starts(v) || ((through_detach || v.what != op::detach) &&
                          ((v.a >= 0 && in[v.a]) || (v.b >= 0 && in[v.b]) || (v.c >= 0 && in[v.c])));
  }
  return s;
}
// Finds the nodes that the outputs need. All inputs count as needed, because sizes follow from their shapes.
constexpr node_set reachable(const graph& g) {
  node_set s(g.size);
  for (id i = 0; i < g.size; ++i) s.in[i] = g[i].what == op::input;
  for (int k = 0; k < g.outs; ++k) s.add(g.out[k].at);
  bool* const in = s.in.data();
  for (id i = g.size - 1; i >= 0; --i) {
    const node& v = g.n[i];
    if (!in[i]) continue;
    if (v.a >= 0) in[v.a] = true;
    if (v.b >= 0) in[v.b] = true;
    if (v.c >= 0) in[v.c] = true;
  }
  return s;
}
// Finds the nodes that `root` is computed from, `root` included.
constexpr node_set dependencies(const graph& g, id root) {
  node_set s(root + 1);
  bool* const in = s.in.data();
  if (root >= 0) in[root] = true;
  for (id i = root; i >= 0; --i) {
    if (!in[i]) continue;
    const node& v = g.n[i];
    if (v.a >= 0) in[v.a] = true;
    if (v.b >= 0) in[v.b] = true;
    if (v.c >= 0) in[v.c] = true;
  }
  return s;
}
constexpr bool contains(const graph& g, id root, op what) {
  if (root < 0 || g.n[root].what == what) return root >= 0;
  if (g.n[root].a < 0) return false;
  const node_set s = dependencies(g, root);
  const bool* const in = s.in.data();
  for (id i = 0; i <= root; ++i)
    if (in[i] && g.n[i].what == what) return true;
  return false;
}
constexpr bool is_output(const graph& g, id i) {
  for (int k = 0; k < g.outs; ++k)
    if (g.out[k].at == i) return true;
  return false;
}
// Finds the value whose memory a chain of reshapes reads.
constexpr id unshaped(const graph& g, id i) {
  while (i >= 0 && g[i].what == op::reshape) i = g[i].a;
  return i;
}
// Finds the base tensor that node i is, reshaped or not; none_id for any other value.
constexpr id base_leaf(const graph& g, id i) {
  i = unshaped(g, i);
  return i >= 0 && g[i].what == op::base ? i : none_id;
}

}  // namespace graft
