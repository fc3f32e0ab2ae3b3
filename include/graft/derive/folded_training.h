// SPDX-License-Identifier: Apache-2.0
// Folded training: the adapter is inside a copy of the weight, W' = W + P Q, which is computed anew after each step.
// Then y = x W'ᵀ and dx = dy W' are GEMMs of the base layer, and of the adapter only the gradients of its parameters
// remain. The rules here turn them into few products:
//     (A1 B1) ⊙ (A2 B2) = (A1 • A2) (B1 ⋆ B2)          the update is one product, whatever its formula
//     x (d ⊙ A)ᵀ = (x Aᵀ) ⊙ dᵀ                         a factor d of the rank leaves the products over the tokens
//     Σ_i ((dy P)ᵀ x ⊙ A)_ki = Σ_o (P ⊙ dyᵀ (x Aᵀ))_ok   two factors then share one: VeRA's two gradients read dyᵀ x Aᵀ
#pragma once
#include <graft/derive/apply.h>
#include <graft/derive/simplify.h>

namespace graft {

namespace detail {
constexpr bool is_one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }

constexpr bool is_stored(const builder& g, id i) {
  while (g.is(i, op::reshape)) i = g.n[i].a;
  return is_leaf(g.n[i].what);
}

// Writes an update that does not depend on the call's data as one product. A scalar multiplies a factor that is
// computed anyway, not one that is read where it is stored.
constexpr id as_single_matmul(builder& g, const node& v) {
  if (v.what != op::mul) return none_id;
  const node p = g.n[v.a], q = g.n[v.b];
  if (p.what == op::matmul && q.what == op::matmul && same_shape(p, q) && is_one_matrix(v)) {
    auto rows = [&](id a, bool flipped) { return flipped ? make_node::transpose(g, a) : a; };
    return make_node::matmul(g, make_node::row_kron(g, rows(p.a, p.ta), rows(q.a, q.ta)),
                             make_node::row_kron(g, rows(p.b, !p.tb), rows(q.b, !q.tb)), false, true, v.line);
  }
  for (int k = 0; k < 2; ++k)
    if (const node m = g.n[v.operand(1 - k)]; is_scalar(g.n[v.operand(k)]) && m.what == op::matmul) {
      auto scaled = [&](id f) {
        const node shape = g.n[f];
        if (shape.what != op::reshape) return make_node::mul(g, v.operand(k), f);
        const id below = make_node::mul(g, v.operand(k), shape.a);  // fuses with the operation below the reshape
        return make_node::reshape(g, below, shape.d[0], shape.d[1], shape.d[2], shape.d[3], shape.line);
      };
      if (is_stored(g, m.a)) return make_node::matmul(g, m.a, scaled(m.b), m.ta, m.tb, v.line, m.sum);
      return make_node::matmul(g, scaled(m.a), m.b, m.ta, m.tb, v.line, m.sum);
    }
  return none_id;
}
// Writes the row sums of (z P)ᵀ x ⊙ A as the column sums of P ⊙ zᵀ (x Aᵀ).
constexpr id as_single_reduction(builder& g, const node& v, const sequence<bool>& data) {
  if (!g.is(v.a, op::mul) || !is_one_matrix(g.n[v.a]) || v.d[3] != dim{1} || v.d[2] != g.n[v.a].d[2]) return none_id;
  const node m = g.n[v.a];
  for (int k = 0; k < 2; ++k) {
    const id a = m.operand(1 - k);
    const node sum = g.n[m.operand(k)];
    if (data[a] || sum.what != op::matmul || !sum.ta || sum.tb || sum.sum || !same_shape(g.n[a], m)) continue;
    const node branch = g.n[sum.a];
    if (!data[sum.a] || !data[sum.b] || branch.what != op::matmul || branch.ta || branch.sum || data[branch.b])
      continue;
    const id p = branch.tb ? make_node::transpose(g, branch.b) : branch.b;
    const id both =
        make_node::mul(g, make_node::matmul(g, branch.a, make_node::matmul(g, sum.b, a, false, true), true), p);
    node columns = g.shaped(op::sum_to, both, both);
    columns.d[2] = {1};
    return make_node::reshape(g, g.emit(columns), v.d[0], v.d[1], v.d[2], v.d[3], v.line);
  }
  return none_id;
}
// Moves a factor that does not depend on the data out of a product with data, where it scales the product's columns.
constexpr id pull_out_column_factor(builder& g, const node& v, const sequence<bool>& data) {
  if (v.what != op::matmul || v.sum || !data[v.a] || !g.is(v.b, op::mul)) return none_id;
  const node m = g.n[v.b];
  for (int k = 0; k < 2; ++k) {
    const id f = m.operand(k), rest = m.operand(1 - k);
    if (is_scalar(g.n[f]) || data[f] || !same_shape(g.n[rest], m)) continue;
    if (v.tb && !data[rest] && is_column(g, f) && is_leaf(g.n[rest].what))
      return make_node::mul(g, make_node::matmul(g, v.a, rest, v.ta, v.tb, v.line), make_node::as_row(g, f));
    if (!v.tb && v.ta && data[rest] && is_row(g, f))
      return make_node::mul(g, make_node::matmul(g, v.a, rest, v.ta, v.tb, v.line), f);
  }
  return none_id;
}
// z ⊙ (a ⊙ b) = (z ⊙ a) ⊙ b, where a ⊙ b is an outer product larger than a and b: it is then never stored.
constexpr id split_outer_product(builder& g, const node& v, const sequence<bool>& data) {
  for (int k = 0; k < 2; ++k) {
    const id z = v.operand(k);
    const node m = g.n[v.operand(1 - k)];
    if (m.what != op::mul || !data[z] || data[v.operand(1 - k)] || !same_shape(g.n[z], v)) continue;
    if (same_shape(g.n[m.a], m) || same_shape(g.n[m.b], m)) continue;
    return make_node::mul(g, make_node::mul(g, z, m.a, v.line), m.b, v.line);
  }
  return none_id;
}
// (z (s P))ᵀ x = s ((z P)ᵀ x): the product then reads P where it is stored.
constexpr id pull_out_scalar(builder& g, const node& v, const sequence<bool>& data) {
  if (!v.ta || v.tb || v.sum || !data[v.b] || !g.is(v.a, op::matmul)) return none_id;
  const node z = g.n[v.a];
  if (z.ta || z.sum || !data[z.a] || data[z.b] || !g.is(z.b, op::mul)) return none_id;
  const node m = g.n[z.b];
  for (int k = 0; k < 2; ++k)
    if (is_scalar(g.n[m.operand(k)]) && is_stored(g, m.operand(1 - k)))
      return make_node::mul(g, m.operand(k),
                            make_node::matmul(g, make_node::matmul(g, z.a, m.operand(1 - k), false, z.tb), v.b, true),
                            v.line);
  return none_id;
}
[[gnu::cold]] constexpr id rebuild_folded(builder& g, const node& v, const sequence<bool>& data) {
  auto is_parameter = [&](id i) { return i < 0 || !data[i]; };
  id made = none_id;
  if (is_parameter(v.a) && is_parameter(v.b) && v.a >= 0) made = as_single_matmul(g, v);
  if (v.what == op::sum_to) made = as_single_reduction(g, v, data);
  if (v.what == op::matmul) made = pull_out_column_factor(g, v, data);
  if (v.what == op::matmul && made < 0) made = pull_out_scalar(g, v, data);
  if (v.what == op::mul && made < 0) made = split_outer_product(g, v, data);
  return made >= 0 ? made : g.emit(v);
}
}  // namespace detail

constexpr builder simplify_folded(const builder& from) { return simplify(rewrite(from, detail::rebuild_folded)); }

}  // namespace graft
