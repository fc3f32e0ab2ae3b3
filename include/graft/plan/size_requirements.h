// SPDX-License-Identifier: Apache-2.0
// Checks the requirements of a formula on its sizes and words their violations, at compile time and at run time alike.
#pragma once
#include <graft/graph/print.h>

namespace graft {

// Prints a value with its sizes: B[out, r], (B @ A)[out, in].
[[gnu::cold]] constexpr void print_shaped(text& t, const graph& g, id i, int depth) {
  if (is_leaf(g[i].what))
    print(t, g, i);
  else
    t << '(', print(t, g, i, {nullptr, depth}), t << ')';
  print_shape(t, g, i);
}
[[gnu::cold]] constexpr text shaped(const graph& g, id i) {
  text t;
  if (i >= 0) print_shaped(t, g, i, 3);
  return t;
}
// The text of an expression with the sizes of its operands, by which errors locate it.
[[gnu::cold]] constexpr text located(const graph& g, id i) {
  if (i < 0 || is_leaf(g[i].what)) return shaped(g, i);
  text t;
  print(t, g, i, {nullptr, 3});
  for (int k = 0; k < traits_of(g[i].what).arity; ++k) {
    t << (k == 0 ? " with " : " and ");
    print_shaped(t, g, g[i].operand(k), 1);
  }
  return t;
}
[[gnu::cold]] constexpr text located(const graph& g, const requirement& r) {
  if (r.at >= 0) return located(g, r.at);
  text t;
  print(t, g.sizes, r.lhs, true), t << (r.what == requirement::kind::divides ? " / " : " = "),
      print(t, g.sizes, r.rhs, true);
  return t;
}
[[gnu::cold]] constexpr text describe(const graph& g, const requirement& r, const size_values& s) {
  text t;
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  switch (r.what) {
    case requirement::kind::inner: t << "inner sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::same: t << "sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::square:
      t << "the matrix is not square: " << lhs << " rows and " << rhs << " columns";
      break;
    case requirement::kind::at_most: t << lhs << " is more than " << rhs; break;
    case requirement::kind::divides: t << rhs << " does not divide " << lhs; break;
  }
  t << " in " << located(g, r);
  if (r.line > 0) t << ", line " << r.line << " of the formula";
  return t;
}
constexpr bool holds(const graph& g, const requirement& r, const size_values& s) {
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  if (lhs == unknown || rhs == unknown) return true;  // cannot be decided before the size is bound
  if (r.what == requirement::kind::at_most) return lhs <= rhs;
  return r.what == requirement::kind::divides ? rhs > 0 && lhs % rhs == 0 : lhs == rhs;
}
[[gnu::cold]] constexpr const requirement* first_violated(const graph& g, const size_values& s) {
  for (int i = 0; i < g.needs; ++i)
    if (!holds(g, g.need[i], s)) return &g.need[i];
  return nullptr;
}

[[gnu::cold]] constexpr long long smallest_size(const graph& g, id i, const size_values& s) {
  long long least = unknown;
  for (dim d : g[i].d)
    if (const long long n = g.sizes.value(d, s); n != unknown && (least == unknown || n < least)) least = n;
  return least;
}
// The first leaf that has a bound size below 1.
[[gnu::cold]] constexpr id first_empty(const graph& g, const size_values& s) {
  for (int i = 0; i < g.size; ++i) {
    if (!is_leaf(g.n[i].what)) continue;
    if (const long long n = smallest_size(g, static_cast<id>(i), s); n != unknown && n < 1) return static_cast<id>(i);
  }
  return none_id;
}

}  // namespace graft
