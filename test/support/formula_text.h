// SPDX-License-Identifier: Apache-2.0
// The graphs of a method as text, for tests that pin a formula, its tensors, or a derivation.
#pragma once
#include <graft/graft.h>

#include "static_check.h"

namespace test {

using namespace graft;

// Base class of the formulas that tests write.
struct unnamed {
  static constexpr const char* name = "a formula of a test";
};

constexpr text written(const graph& g, const char* output) { return expression(g, g.result(output), {nullptr, 40}); }

// The tensors that a method adds to those of the base layer, in the order in which the formula reads them, with their
// sizes as in a file: parameters, frozen tensors and scalars.
constexpr text tensors(const graph& g) {
  text t;
  for (int i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    if (v.what != op::param && v.what != op::frozen && v.what != op::scalar) continue;
    t << (t.empty() ? "" : "; ") << (v.what == op::frozen ? "frozen " : "") << v.name;
    if (v.what != op::scalar) print_shape(t, g, static_cast<id>(i));
  }
  return t;
}

template <class Adapter, class Kind = linear_kind, bool Bias = false> struct of {
  using d = derived<Kind, Adapter, Bias>;
  static constexpr text formula = written(d::merge, "weight");
  static constexpr text leaves = tensors(d::merge);
  static constexpr text forward = written(d::forward, "y");
  static constexpr text unmerge = d::unmerging.weight ? written(d::unmerge_weight, "weight") : text("impossible");
};
template <class Adapter, class Kind = linear_kind, bool Bias = true> constexpr text bias_formula() {
  const graph& g = derived<Kind, Adapter, Bias>::merge;
  return g.result("bias") < 0 ? text("as it is") : written(g, "bias");
}
template <class Adapter, class Kind = linear_kind> constexpr text gradient(const char* name) {
  return written(derived<Kind, Adapter, false>::backward, name);
}

}  // namespace test
