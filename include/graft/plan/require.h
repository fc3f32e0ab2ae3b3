// SPDX-License-Identifier: Apache-2.0
// Checking the sizes of a graph against what its formula requires, at compile time and at run time alike.
#pragma once
#include <graft/graph/print.h>

namespace graft {

// An expression with the sizes of its operands: what an error points at.
constexpr text located(const graph& g, id i) {
  text t;
  if (i < 0) return t;
  print(t, g, i, {nullptr, 3});
  t << " with ";
  const node& v = g[i];
  for (int k = 0; k < row(v.what).arity; ++k) {
    if (k > 0) t << " and ";
    const id o = v.operand(k);
    if (is_leaf(g[o].what))
      t << g[o].name;
    else
      t << "(", print(t, g, o, {nullptr, 1}), t << ")";
    print_shape(t, g, o);
  }
  return t;
}
constexpr text located(const graph& g, const requirement& r) {
  if (r.at >= 0) return located(g, r.at);
  text t;
  print(t, g.sizes, r.lhs, true), t << (r.what == requirement::kind::divides ? " / " : " = "),
      print(t, g.sizes, r.rhs, true);
  return t;
}
constexpr text describe(const graph& g, const requirement& r, const size_values& s) {
  text t;
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  switch (r.what) {
    case requirement::kind::inner: t << "inner sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::same: t << "sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::square: t << "the matrix is not square: " << lhs << " x " << rhs; break;
    case requirement::kind::divides: t << rhs << " does not divide " << lhs; break;
  }
  t << " in " << located(g, r);
  if (r.line > 0) t << ", line " << r.line << " of the formula";
  return t;
}
constexpr bool holds(const graph& g, const requirement& r, const size_values& s) {
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  if (lhs == unknown || rhs == unknown) return true;  // not decided yet
  return r.what == requirement::kind::divides ? rhs > 0 && lhs % rhs == 0 : lhs == rhs;
}
constexpr const requirement* first_violated(const graph& g, const size_values& s) {
  for (int i = 0; i < g.needs; ++i)
    if (!holds(g, g.need[i], s)) return &g.need[i];
  return nullptr;
}

}  // namespace graft
