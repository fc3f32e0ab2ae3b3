// SPDX-License-Identifier: Apache-2.0
// Shape rules of the arithmetic ops: elementwise ops with broadcasting, matrix products, row reductions.
#pragma once
#include <graft/graph/builder.h>

namespace graft::make_node {

[[gnu::cold, gnu::noinline]] constexpr id pointwise(builder& g, op o, id a, id b, int line = 0) {
  node v = g.shaped(o, a, a, b, none_id, line);
  dim p[4]{}, q[4]{};
  const node& right = g.n[b];
  for (int i = 0; i < 4; ++i) {
    p[i] = v.d[i], q[i] = right.d[i];
    if (p[i].v == 1) v.d[i] = q[i];
  }
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i)
    if (p[i].v != 1 && q[i].v != 1 && p[i].v != q[i].v) g.require(requirement::kind::same, p[i], q[i], made, line);
  return made;
}
constexpr id unary(builder& g, op o, id a, int line = 0) { return g.emit(g.shaped(o, a, a, none_id, none_id, line)); }

constexpr id zero_of(builder& g, id a, id b) {  // zeros of the broadcast shape of a and b
  node v = g.shaped(op::zero, a, none_id);
  for (int i = 0; i < 4; ++i)
    if (g.n[a].d[i] == dim{1}) v.d[i] = g.n[b].d[i];
  v.name = "0";
  return g.emit(v);
}
constexpr bool broadcasts_to(const builder& g, id a, id b) {  // true where the broadcast shape of a and b is that of a
  const node &p = g.n[a], &q = g.n[b];
  for (int i = 0; i < 4; ++i)
    if (q.d[i].v != 1 && p.d[i].v != q.d[i].v) return false;
  return true;
}

[[gnu::cold, gnu::noinline]] constexpr id add(builder& g, id a, id b, int line = 0) {
  if (g.is(a, op::zero) && broadcasts_to(g, b, a)) return b;
  if (g.is(b, op::zero) && broadcasts_to(g, a, b)) return a;
  return pointwise(g, op::add, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id sub(builder& g, id a, id b, int line = 0) {
  if (g.is(b, op::zero) && broadcasts_to(g, a, b)) return a;
  return pointwise(g, op::sub, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id mul(builder& g, id a, id b, int line = 0) {
  if (g.is_value(a, 1) && broadcasts_to(g, b, a)) return b;
  if (g.is_value(b, 1) && broadcasts_to(g, a, b)) return a;
  if (g.is(a, op::zero) || g.is(b, op::zero)) return zero_of(g, a, b);
  if (g.is(a, op::constant) && g.is(b, op::constant)) return g.constant(g.n[a].value * g.n[b].value);
  return pointwise(g, op::mul, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id div(builder& g, id a, id b, int line = 0) {
  if (g.is_value(b, 1) && broadcasts_to(g, a, b)) return a;
  if (g.is(a, op::zero)) return zero_of(g, a, b);
  return pointwise(g, op::div, a, b, line);
}
constexpr id negate(builder& g, id a) { return mul(g, g.constant(-1), a); }

[[gnu::cold, gnu::noinline]] constexpr id matmul(builder& g, id a, id b, bool ta = false, bool tb = false, int line = 0,
                                                 bool sum = false) {
  while (g.is(a, op::transpose)) a = g.n[a].a, ta = !ta;
  while (g.is(b, op::transpose)) b = g.n[b].a, tb = !tb;
  const node p = g.n[a], q = g.n[b];
  if (p.what == op::eye && !tb && !sum) return b;
  node v = g.shaped(op::matmul, a, a, b, none_id, line);
  v.ta = ta, v.tb = tb, v.sum = sum;
  v.d[2] = ta ? p.d[3] : p.d[2];
  v.d[3] = tb ? q.d[2] : q.d[3];
  for (int i = 0; i < 2; ++i) v.d[i] = sum ? dim{1} : p.d[i] == dim{1} ? q.d[i] : p.d[i];
  if (p.what == op::zero || q.what == op::zero) {
    v.what = op::zero;
    v.a = v.b = none_id;
    v.ta = v.tb = v.sum = false;
    v.name = "0";
  }
  const id made = g.emit(v);
  g.require(requirement::kind::inner, ta ? p.d[2] : p.d[3], tb ? q.d[3] : q.d[2], made, line);
  for (int i = 0; i < 2; ++i)
    if (p.d[i] != dim{1} && q.d[i] != dim{1}) g.require(requirement::kind::same, p.d[i], q.d[i], made, line);
  return made;
}

// Sums each row of a ⊙ b into a column.
constexpr id row_dot(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::row_dot, a, a, b, none_id, line);
  v.d[3] = dim{1};
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i) g.require(requirement::kind::same, g.n[a].d[i], g.n[b].d[i], made, line);
  return made;
}
// Sums a over the axes along which `like` has size 1, which is the adjoint of broadcasting.
constexpr id sum_to(builder& g, id a, id like) {
  if (broadcasts_to(g, like, a)) return a;
  return g.emit(g.shaped(op::sum_to, like, a));
}

}  // namespace graft::make_node
