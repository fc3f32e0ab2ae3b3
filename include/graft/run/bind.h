// SPDX-License-Identifier: Apache-2.0
// Binding: tensors and numbers by name, checked against what a graph expects. The same printer that words the compile
// errors words these.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/graph/print.h>

#include <map>
#include <string>
#include <vector>

namespace graft {

using tensor_map = std::map<std::string, view, std::less<>>;
using size_map = std::map<std::string, long long, std::less<>>;

constexpr text expected_shape(const graph& g, id i, const size_values& s) {
  text t;
  print_shape(t, g, i);
  t << " = [";
  const node& v = g[i];
  const int first = v.rank == 1 ? 2 : 4 - v.rank, last = v.rank == 1 ? 3 : 4;
  for (int k = first; k < last; ++k) {
    const long long n = g.sizes.value(v.d[k], s);
    t << (k > first ? ", " : "");
    n == unknown ? t << '?' : t << n;
  }
  t << ']';
  return t;
}
// The axes of a leaf that a tensor of its rank lists; a column is listed as one number, ids as well.
struct axes {
  int first, last;
};
constexpr axes listed_axes(const node& v) {
  if (v.rank == 1) return v.what == op::ids ? axes{3, 4} : axes{2, 3};
  return {4 - v.rank, 4};
}

// Solves the named sizes from one tensor's shape.
inline status fit(const graph& g, id i, const view& v, size_values& s) {
  const axes a = listed_axes(g[i]);
  bool fits = v.rank == a.last - a.first;
  size_values trial = s;
  for (int pass = 0; fits && pass < 2; ++pass)   // a second pass sees the names that the first one found
    for (int k = a.first; fits && k < a.last; ++k) fits = g.sizes.solve(g[i].d[k], v.size[k - a.first], trial);
  if (!fits)
    return fail("tensor '", g[i].name, "' has shape ", shape_of(v), ", expected ", expected_shape(g, i, s));
  s = trial;
  return ok;
}

// The first requirement of the graph that the sizes do not meet, as a sentence.
constexpr text describe(const graph& g, const requirement& r, const size_values& s) {
  text t;
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  switch (r.what) {
    case requirement::kind::inner: t << "inner sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::same: t << "sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::square: t << "the matrix is not square: " << lhs << " x " << rhs; break;
    case requirement::kind::divides: t << rhs << " does not divide " << lhs; break;
  }
  if (r.at >= 0) t << " in " << expression(g, r.at, {nullptr, 4});
  if (r.line > 0) t << ", line " << r.line << " of the formula";
  return t;
}
constexpr bool holds(const graph& g, const requirement& r, const size_values& s) {
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  if (lhs == unknown || rhs == unknown) return true;   // not decided yet
  return r.what == requirement::kind::divides ? rhs > 0 && lhs % rhs == 0 : lhs == rhs;
}
constexpr const requirement* first_violated(const graph& g, const size_values& s) {
  for (int i = 0; i < g.needs; ++i)
    if (!holds(g, g.need[i], s)) return &g.need[i];
  return nullptr;
}

}  // namespace graft
