// SPDX-License-Identifier: Apache-2.0
// factors_first: the gradient of a factor of W' whose other factor P meets the rows before they are summed.
//     Pᵀ (dᵀ x) = (d P)ᵀ x        (dᵀ x) P = dᵀ (x P)
// On the left a matrix as large as W is summed over the rows, and multiplied; on the right only rows are multiplied, which
// is less work where there are fewer of them than W has (RandLoRA with 512 of them on 1024: two products instead of
// three).
#pragma once
#include <graft/derive/simplify.h>

#include <initializer_list>

namespace graft {

namespace detail {
constexpr bool one_matrix_each(const builder& g, id a, id b) {
  for (const id i : {a, b})
    if (g.n[i].d[0] != dim{1} || g.n[i].d[1] != dim{1}) return false;
  return true;
}
}  // namespace detail

// The rule for one node whose operands are already in g.
constexpr id factor_first(builder& g, const node& v, const sequence<bool>& data) {
  if (v.what != op::matmul || v.sum || !detail::one_matrix_each(g, v.a, v.b)) return g.emit(v);
  for (int k = 0; k < 2; ++k) {
    const id at = v.operand(k), factor = v.operand(1 - k);
    if (!data[at] || data[factor] || !g.is(at, op::matmul)) continue;
    const node sum = g.n[at];  // dᵀ x
    if (!sum.ta || sum.tb || sum.sum || !data[sum.a] || !data[sum.b] || !detail::one_matrix_each(g, sum.a, sum.b))
      continue;
    const bool turned = k == 0 ? v.ta : v.tb;  // xᵀ d
    const id d = turned ? sum.b : sum.a, x = turned ? sum.a : sum.b;
    if (k == 0) {
      const id narrow = make::matmul(g, x, factor, false, v.tb, v.line);
      return make::matmul(g, d, narrow, true, false, v.line);
    }
    const id narrow = make::matmul(g, d, factor, false, !v.ta, v.line);
    return make::matmul(g, narrow, x, true, false, v.line);
  }
  return g.emit(v);
}
constexpr builder factors_first(const builder& from) { return canonical(rewrite(from, factor_first)); }

}  // namespace graft
