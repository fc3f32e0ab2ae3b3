// SPDX-License-Identifier: Apache-2.0
// What is computed of the parameters before there is data, and how: expressions that are a kernel each (plan/expression.h),
// and a weight times a narrow matrix, which is a pass over the weight.
#pragma once
#include <graft/plan/expression.h>
#include <graft/plan/token_sum.h>

namespace graft::cuda {

struct known_expressions {
  sequence<sequence<id>> all;  // the last node of each comes first
  sequence<int> of;            // for each node, or -1

  // `readers`: how often each node is read, by whoever reads it; `changing`: what follows from parameters.
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

// A stored weight times a narrow matrix (DoRA's norm): the kernel that makes S of a branch.
constexpr bool meets_weight(const graph& g, id i) {
  const node& v = g[i];
  return v.what == op::matmul && !v.ta && !v.sum && base_leaf(g, v.a) >= 0 && base_leaf(g, v.b) < 0 &&
         graft::detail::one_matrix(g[v.a]) && graft::detail::one_matrix(g[v.b]);
}

}  // namespace graft::cuda
