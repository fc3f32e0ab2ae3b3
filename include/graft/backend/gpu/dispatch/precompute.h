// SPDX-License-Identifier: Apache-2.0
// Precomputed values: which of them are joined to elementwise expressions of one kernel each
// (plan/launch/expression.h), and which are a stored weight times a narrow matrix, computed by the shrink kernel in one
// pass over the weight.
#pragma once
#include <graft/plan/launch/expression.h>
#include <graft/plan/launch/wgrad.h>

namespace graft::gpu {

struct precomputed_expressions {
  sequence<sequence<id>> all;  // nodes of each expression; its root is the first
  sequence<int> of;            // the expression of each node, or -1

  // `readers` counts how often each node is read; `changing` are the nodes that follow from parameters.
  void find(const graph& g, const stages& when, const sequence<int>& readers, const node_set& changing) {
    node_set free(g.size);
    for (id i = 0; i < g.size; ++i)
      if (changing[i] && !is_leaf(g[i].what)) free.add(i);
    expression_finder finder(g, when, readers, free);
    all.clear(), of = sequence<int>(g.size, -1);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!finder.free[i]) continue;
      sequence<id> nodes = finder.at(i);
      for (const id n : nodes) of[n] = all.size();
      if (!nodes.empty()) all.push(static_cast<sequence<id>&&>(nodes));
    }
  }
};

// Returns true if node i is a stored weight times a narrow matrix, as in DoRA's norm. The kernel that computes the
// shrink of a low-rank branch with dropout evaluates it.
constexpr bool is_weight_shrink(const graph& g, id i) {
  const node& v = g[i];
  return v.what == op::matmul && !v.ta && !v.sum && base_leaf(g, v.a) >= 0 && base_leaf(g, v.b) < 0 &&
         graft::detail::one_matrix(g[v.a]) && graft::detail::one_matrix(g[v.b]);
}

}  // namespace graft::gpu
