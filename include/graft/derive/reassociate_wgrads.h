// SPDX-License-Identifier: Apache-2.0
// reassociate_wgrads: the gradient (wgrad) of a factor of W' whose other factor P can multiply the rows before they are
// reduced over tokens. d is the gradient of the rows and x the rows, both [tokens, …]:
//     Pᵀ (dᵀ x) = (d P)ᵀ x        (dᵀ x) P = dᵀ (x P)
// The left form reduces to a matrix as large as W and multiplies it; the right form multiplies only rows, which is less
// work where the call has fewer rows than W (RandLoRA with 512 rows on 1024: two products instead of three).
#pragma once
#include <graft/derive/simplify.h>

#include <initializer_list>

namespace graft {

namespace detail {
constexpr bool are_matrices(const builder& g, id a, id b) {
  for (const id i : {a, b})
    if (g.n[i].d[0] != dim{1} || g.n[i].d[1] != dim{1}) return false;
  return true;
}
}  // namespace detail

// Rewrites one node whose operands are already in g.
constexpr id reassociate_wgrad(builder& g, const node& v, const sequence<bool>& data) {
  if (v.what != op::matmul || v.sum || !detail::are_matrices(g, v.a, v.b)) return g.emit(v);
  for (int k = 0; k < 2; ++k) {
    const id at = v.operand(k), factor = v.operand(1 - k);
    if (!data[at] || data[factor] || !g.is(at, op::matmul)) continue;
    const node sum = g.n[at];  // dᵀ x
    if (!sum.ta || sum.tb || sum.sum || !data[sum.a] || !data[sum.b] || !detail::are_matrices(g, sum.a, sum.b))
      continue;
    const bool transposed_sum = k == 0 ? v.ta : v.tb;  // xᵀ d
    const id d = transposed_sum ? sum.b : sum.a, x = transposed_sum ? sum.a : sum.b;
    if (k == 0) {
      const id narrow = make_node::matmul(g, x, factor, false, v.tb, v.line);
      return make_node::matmul(g, d, narrow, true, false, v.line);
    }
    const id narrow = make_node::matmul(g, d, factor, false, !v.ta, v.line);
    return make_node::matmul(g, narrow, x, true, false, v.line);
  }
  return g.emit(v);
}
constexpr builder reassociate_wgrads(const builder& from) { return canonical(rewrite(from, reassociate_wgrad)); }

}  // namespace graft
