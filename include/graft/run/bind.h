// SPDX-License-Identifier: Apache-2.0
// Shape checks of binding: named sizes are solved from the shapes of tensors, and errors name what a graph expects in
// the words of the compile errors.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view_checks.h>
#include <graft/plan/size_requirements.h>
#include <graft/run/named_tensors.h>

#include <vector>

namespace graft {

// The axes of a leaf that the shape of its tensor lists. A tensor of rank 1 is a column, or a row of ids.
struct axis_range {
  int first, last;
};
constexpr axis_range listed_axes(const node& v) {
  if (v.rank == 1) return v.what == op::ids ? axis_range{3, 4} : axis_range{2, 3};
  return {4 - v.rank, 4};
}
constexpr text expected_shape(const graph& g, id i, const size_values& s) {
  text t;
  print_shape(t, g, i);
  t << " = [";
  const axis_range a = listed_axes(g[i]);
  for (int k = a.first; k < a.last; ++k) {
    const long long n = g.sizes.value(g[i].d[k], s);
    t << (k > a.first ? ", " : "");
    n == unknown ? t << '?' : t << n;
  }
  t << ']';
  return t;
}

// Solves the named sizes from one tensor's shape.
inline status solve_sizes(const graph& g, id i, const view& v, size_values& s) {
  const axis_range a = listed_axes(g[i]);
  bool fits = v.rank == a.last - a.first;
  size_values trial = s;
  for (int pass = 0; fits && pass < 2; ++pass)  // [b, n / b] needs b before n
    for (int k = a.first; fits && k < a.last; ++k) fits = g.sizes.solve(g[i].d[k], v.size[k - a.first], trial);
  if (!fits) return fail("tensor '", g.name(i), "' has shape ", shape_of(v), ", expected ", expected_shape(g, i, s));
  s = trial;
  return ok;
}

}  // namespace graft
