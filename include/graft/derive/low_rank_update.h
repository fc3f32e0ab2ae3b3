// SPDX-License-Identifier: Apache-2.0
// Weight updates: a weight that follows element by element from a stored one and a product of two matrices,
//     W' = W + P Q       or  W' = W ⊙ (1 + P Q), or any other pointwise expression
// A backend computes it by one product, and then reads it as it reads a stored weight.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

struct low_rank_update {
  bool found = false;
  id base = none_id, product = none_id, left = none_id, right = none_id;
  bool left_transposed = false, right_by_row = false;  // P is stored [rank, out]; Q is stored [in, rank]
  bool adds = false;                                   // W' is W + P Q
};
// Returns true if node i is an elementwise operation that is computed with the product.
constexpr bool is_update_elementwise(const graph& g, id i) {
  return is_pointwise(g[i].what) && g[i].what != op::dropout && !is_scalar(g[i]);
}
namespace detail {
constexpr bool find_updated(const graph& g, id w, id i, low_rank_update& to) {
  if (is_scalar(g[i])) return !g[i].from_base;
  if (!same_shape(g[w], g[i])) return false;
  const node& v = g[i];
  if (v.what == op::base) return to.base < 0 && (to.base = i, true);
  if (v.what == op::matmul) {
    if (to.product >= 0 || v.sum || g[v.a].from_base || g[v.b].from_base) return false;
    to.product = i, to.left = v.a, to.right = v.b, to.left_transposed = v.ta, to.right_by_row = v.tb;
    return true;
  }
  if (!is_update_elementwise(g, i)) return false;
  for (int k = 0; k < 3; ++k)
    if (const id o = v.operand(k); o >= 0 && !find_updated(g, w, o, to)) return false;
  return true;
}
}  // namespace detail
[[gnu::cold]] constexpr low_rank_update low_rank_update_at(const graph& g, id w) {
  low_rank_update to;
  if (w < 0 || g[w].d[0] != dim{1} || g[w].d[1] != dim{1} || !detail::find_updated(g, w, w, to)) return {};
  to.found = to.base >= 0 && to.product >= 0 && to.product != w;
  to.adds = g[w].what == op::add && (g[w].a == to.base || g[w].b == to.base) &&
            (g[w].a == to.product || g[w].b == to.product);
  return to.found ? to : low_rank_update{};
}

}  // namespace graft
