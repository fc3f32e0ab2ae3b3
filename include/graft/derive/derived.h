// SPDX-License-Identifier: Apache-2.0
// Everything that follows from one formula, captured by instantiation. The sizes are names, so all layers that share a
// kind, an adapter and the question whether there is a bias share these graphs, whatever their shapes.
#pragma once
#include <graft/derive/grad.h>
#include <graft/derive/kinds.h>
#include <graft/derive/merge.h>

namespace graft {

template <class Kind, bool Bias> constexpr ex base_bias(scope p) {
  const extent n = Kind::outputs(p);
  return Bias ? p.leaf(op::base, "bias", 1, 1, 1, n, 1) : p.leaf(op::zero, {"0", 0}, 2, 1, 1, n, 1);
}

// y of the adapted layer. `keep_gradients`: detach still matters, because grad() follows.
template <class Kind, class Adapter, bool Bias> constexpr builder capture(lowering how, bool keep_gradients) {
  builder formula{};
  const scope p{&formula};
  formula.give(Adapter::weight(p, Kind::matrix(p, Kind::weight(p))).i, "weight");
  formula.give(adapted_bias<Adapter>(p, base_bias<Kind, Bias>(p)).i, "bias");
  builder g = keep_gradients ? formula : values_only(formula);
  const id w = g.result("weight"), b = g.result("bias");
  g.outs = 0;
  g.give(Kind::run({&g}, {&g, w}, {&g, b}, how).i, "y");
  return how == lowering::fast ? simplify(g) : compact(g);
}
template <class Kind, class Adapter, bool Bias> constexpr builder capture_merge() {
  builder g{};
  const scope p{&g};
  g.give(Kind::stored(p, Adapter::weight(p, Kind::matrix(p, Kind::weight(p)))).i, "weight");
  const ex b = adapted_bias<Adapter>(p, base_bias<Kind, Bias>(p));
  if ((*b).what != op::zero) g.give(b.i, "bias");
  return compact(g);
}

template <class Kind, class Adapter, bool Bias> struct derived {
  static constexpr builder literal = capture<Kind, Adapter, Bias>(lowering::literal, true);
  static constexpr builder literal_backward = compact(grad(literal));
  static constexpr builder forward = capture<Kind, Adapter, Bias>(lowering::fast, false);
  // W' built once per change of the parameters: for adapters whose side branch costs more than that copy.
  static constexpr builder folded = compact(values_only(capture<Kind, Adapter, Bias>(lowering::literal, false)));
  static constexpr builder backward = compact(values_only(grad(capture<Kind, Adapter, Bias>(lowering::fast, true))));
  static constexpr builder merge = capture_merge<Kind, Adapter, Bias>();
  static constexpr unmerging unmerge_weight = unmerge(merge, "weight", "weight");
  static constexpr unmerging unmerge_bias = unmerge(merge, "bias", "bias");
};

}  // namespace graft
