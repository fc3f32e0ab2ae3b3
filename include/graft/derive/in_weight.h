// SPDX-License-Identifier: Apache-2.0
// in_weight: training with the adapter inside a copy of the weight, W' = W + P Q, made anew after each step. y = x W'ᵀ and
// dx = dy W' are then the products of the base; what is left of the adapter are the gradients of its parameters. For them
//     (A1 B1) ⊙ (A2 B2) = (A1 • A2) (B1 ⋆ B2)       the update is one product, whatever its formula
//     x (d ⊙ A)ᵀ = (x Aᵀ) ⊙ dᵀ                      a factor of the rank leaves the products over the tokens,
//     Σ_i ((dy P)ᵀ x ⊙ A)_ki = Σ_o (P ⊙ dyᵀ (x Aᵀ))_ok  so that those of both factors are one: VeRA's two gradients read dyᵀ x Aᵀ
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

// An update that is known before the data, as one product. A number belongs to the factor that is computed anyway.
constexpr id as_one_product(builder& g, const node& v) {
  if (v.what != op::mul) return none_id;
  const node p = g.n[v.a], q = g.n[v.b];
  if (p.what == op::matmul && q.what == op::matmul && same_shape(p, q) && is_one_matrix(v)) {
    auto rows = [&](id a, bool flipped) { return flipped ? make::transpose(g, a) : a; };
    return make::matmul(g, make::row_kron(g, rows(p.a, p.ta), rows(q.a, q.ta)),
                        make::row_kron(g, rows(p.b, !p.tb), rows(q.b, !q.tb)), false, true, v.line);
  }
  for (int k = 0; k < 2; ++k)
    if (const node m = g.n[v.operand(1 - k)]; is_scalar(g.n[v.operand(k)]) && m.what == op::matmul) {
      auto scaled = [&](id f) {
        const node shape = g.n[f];
        if (shape.what != op::reshape) return make::mul(g, v.operand(k), f);
        const id below = make::mul(g, v.operand(k), shape.a);  // joined to what is computed there
        return make::reshape(g, below, shape.d[0], shape.d[1], shape.d[2], shape.d[3], shape.line);
      };
      if (is_stored(g, m.a)) return make::matmul(g, m.a, scaled(m.b), m.ta, m.tb, v.line, m.sum);
      return make::matmul(g, scaled(m.a), m.b, m.ta, m.tb, v.line, m.sum);
    }
  return none_id;
}
// Σ over each row of ((z P)ᵀ x ⊙ A): the sum over each column of P ⊙ zᵀ (x Aᵀ).
constexpr id by_one_sum(builder& g, const node& v, const sequence<bool>& data) {
  if (!g.is(v.a, op::mul) || !is_one_matrix(g.n[v.a]) || v.d[3] != dim{1} || v.d[2] != g.n[v.a].d[2]) return none_id;
  const node m = g.n[v.a];
  for (int k = 0; k < 2; ++k) {
    const id a = m.operand(1 - k);
    const node sum = g.n[m.operand(k)];
    if (data[a] || sum.what != op::matmul || !sum.ta || sum.tb || sum.sum || !same_shape(g.n[a], m)) continue;
    const node side = g.n[sum.a];
    if (!data[sum.a] || !data[sum.b] || side.what != op::matmul || side.ta || side.sum || data[side.b]) continue;
    const id p = side.tb ? make::transpose(g, side.b) : side.b;
    const id both = make::mul(g, make::matmul(g, side.a, make::matmul(g, sum.b, a, false, true), true), p);
    node columns = g.shaped(op::sum_to, both, both);
    columns.d[2] = {1};
    return make::reshape(g, g.emit(columns), v.d[0], v.d[1], v.d[2], v.d[3], v.line);
  }
  return none_id;
}
// Factors that are known before the data leave a product of it, where they belong to its columns.
constexpr id without_column_factor(builder& g, const node& v, const sequence<bool>& data) {
  if (v.what != op::matmul || v.sum || !data[v.a] || !g.is(v.b, op::mul)) return none_id;
  const node m = g.n[v.b];
  for (int k = 0; k < 2; ++k) {
    const id f = m.operand(k), rest = m.operand(1 - k);
    if (is_scalar(g.n[f]) || data[f] || !same_shape(g.n[rest], m)) continue;
    if (v.tb && !data[rest] && is_column(g, f) && is_leaf(g.n[rest].what))
      return make::mul(g, make::matmul(g, v.a, rest, v.ta, v.tb, v.line), make::as_row(g, f));
    if (!v.tb && v.ta && data[rest] && is_row(g, f))
      return make::mul(g, make::matmul(g, v.a, rest, v.ta, v.tb, v.line), f);
  }
  return none_id;
}
// z ⊙ (a ⊙ b) = (z ⊙ a) ⊙ b where a ⊙ b is larger than either: it is computed where it is read, and stored nowhere.
constexpr id without_outer_product(builder& g, const node& v, const sequence<bool>& data) {
  for (int k = 0; k < 2; ++k) {
    const id z = v.operand(k);
    const node m = g.n[v.operand(1 - k)];
    if (m.what != op::mul || !data[z] || data[v.operand(1 - k)] || !same_shape(g.n[z], v)) continue;
    if (same_shape(g.n[m.a], m) || same_shape(g.n[m.b], m)) continue;
    return make::mul(g, make::mul(g, z, m.a, v.line), m.b, v.line);
  }
  return none_id;
}
// (z (s P))ᵀ x = s ((z P)ᵀ x): the product reads P where it is stored.
constexpr id without_number(builder& g, const node& v, const sequence<bool>& data) {
  if (!v.ta || v.tb || v.sum || !data[v.b] || !g.is(v.a, op::matmul)) return none_id;
  const node z = g.n[v.a];
  if (z.ta || z.sum || !data[z.a] || data[z.b] || !g.is(z.b, op::mul)) return none_id;
  const node m = g.n[z.b];
  for (int k = 0; k < 2; ++k)
    if (is_scalar(g.n[m.operand(k)]) && is_stored(g, m.operand(1 - k)))
      return make::mul(g, m.operand(k), make::matmul(g, make::matmul(g, z.a, m.operand(1 - k), false, z.tb), v.b, true),
                       v.line);
  return none_id;
}
[[gnu::cold]] constexpr id rebuild_in_weight(builder& g, const node& v, const sequence<bool>& data) {
  auto known = [&](id i) { return i < 0 || !data[i]; };
  id made = none_id;
  if (known(v.a) && known(v.b) && v.a >= 0) made = as_one_product(g, v);
  if (v.what == op::sum_to) made = by_one_sum(g, v, data);
  if (v.what == op::matmul) made = without_column_factor(g, v, data);
  if (v.what == op::matmul && made < 0) made = without_number(g, v, data);
  if (v.what == op::mul && made < 0) made = without_outer_product(g, v, data);
  return made >= 0 ? made : g.emit(v);
}
}  // namespace detail

constexpr builder simplify_in_weight(const builder& from) { return simplify(rewrite(from, detail::rebuild_in_weight)); }

}  // namespace graft
