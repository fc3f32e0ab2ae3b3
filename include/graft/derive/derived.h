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

// The `_made` graphs exist only while the compiler works; what a program keeps has just the nodes it needs.
template <class Kind, class Adapter, bool Bias> struct derived {
  static constexpr builder literal_made = capture<Kind, Adapter, Bias>(lowering::literal, true);
  static constexpr builder literal_backward_made = compact(grad(literal_made));
  static constexpr builder forward_made = capture<Kind, Adapter, Bias>(lowering::fast, false);
  static constexpr builder folded_made = compact(values_only(capture<Kind, Adapter, Bias>(lowering::literal, false)));
  static constexpr builder backward_made =
      compact(values_only(grad(capture<Kind, Adapter, Bias>(lowering::fast, true))));
  static constexpr builder merge_made = capture_merge<Kind, Adapter, Bias>();
  static constexpr unmerging unmerge_weight_made = unmerge(merge_made, "weight", "weight");
  static constexpr unmerging unmerge_bias_made = unmerge(merge_made, "bias", "bias");

  static constexpr auto literal = store<literal_made.size>(literal_made);
  static constexpr auto literal_backward = store<literal_backward_made.size>(literal_backward_made);
  static constexpr auto forward = store<forward_made.size>(forward_made);
  // W' built once per change of the parameters: for adapters whose side branch costs more than that copy.
  static constexpr auto folded = store<folded_made.size>(folded_made);
  static constexpr auto backward = store<backward_made.size>(backward_made);
  static constexpr auto merge = store<merge_made.size>(merge_made);
  static constexpr auto unmerge_weight = store<unmerge_weight_made.g.size>(unmerge_weight_made.g);
  static constexpr auto unmerge_bias = store<unmerge_bias_made.g.size>(unmerge_bias_made.g);
  static constexpr unmerge_facts weight_facts = unmerge_weight_made.facts, bias_facts = unmerge_bias_made.facts;
};

}  // namespace graft
