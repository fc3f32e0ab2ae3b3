// SPDX-License-Identifier: Apache-2.0
// Everything that follows from one formula. Each graph is a plain function of a layer_formula: a kind of layer, an adapter,
// and whether there is a bias, all as values. The sizes are names, so all layers that share these share the graphs,
// whatever their shapes. derived<> evaluates the functions while compiling; model/methods.h runs them at load.
#pragma once
#include <graft/adapter/none.h>
#include <graft/derive/factors_first.h>
#include <graft/derive/grad.h>
#include <graft/derive/in_weight.h>
#include <graft/derive/kinds.h>
#include <graft/derive/merge.h>

namespace graft {

struct layer_formula {
  kind_rules kind{};
  formula adapter{};
  bool has_bias = false;
  // Further adapters on the same base, each applied to what the ones before it made of the weight; their tensors lie in a
  // path of their own.
  const formula* more = nullptr;
  const char* const* more_paths = nullptr;
  int mores = 0;
};
template <class Kind, class Adapter, bool Bias> constexpr layer_formula layer_of() {
  return {rules_of<Kind>(), formula_of<Adapter>(), Bias};
}
constexpr layer_formula without_adapter(layer_formula f) {
  f.adapter = formula_of<none>(), f.mores = 0;
  return f;
}

constexpr ex base_bias(const layer_formula& f, scope p) {
  const extent n = f.kind.outputs(p);
  if (f.has_bias) return p.leaf(op::base, "bias", 1, 1, 1, n, 1);
  return {p.g, p.g->leaf(op::zero, "0", 0, 2, {1}, {1}, n.d, {1})};
}
constexpr ex adapted_weight(const layer_formula& f, scope p) {
  const ex base = f.kind.matrix(p, f.kind.weight(p));
  ex w = f.adapter.weight(p, base);
  for (int i = 0; i < f.mores; ++i) w = f.more[i].weight_after(p.in(f.more_paths[i]), w, base);
  return w;
}
[[gnu::cold]] constexpr ex adapted_bias(const layer_formula& f, scope p) {
  const base_tensors base{f.kind.matrix(p, f.kind.weight(p)), base_bias(f, p)};
  ex b = f.adapter.adapted_bias(p, base.bias, base);
  for (int i = 0; i < f.mores; ++i) b = f.more[i].adapted_bias(p.in(f.more_paths[i]), b, base);
  return b;
}

constexpr builder simplified(const builder& g, lowering how) {
  switch (how) {
    case lowering::literal: break;
    case lowering::fast: return simplify(g);
    case lowering::by_rows: return simplify_norms(g);
  }
  return canonical(g);
}
// y of the adapted layer. `keep_gradients`: detach still matters, because grad() follows.
constexpr builder capture(const layer_formula& f, lowering how, bool keep_gradients) {
  builder g;
  const scope p{&g};
  g.give(adapted_weight(f, p).i, "weight");
  g.give(adapted_bias(f, p).i, "bias");
  if (!keep_gradients) g = rewrite(g, value_rule);
  const id w = g.result("weight"), b = g.result("bias");
  g.out.clear();
  const ex x = f.kind.input(p, {&g, w});
  g.give(f.kind.run(p, {&g, w}, {&g, b}, x, how).i, "y");
  return simplified(g, how);
}
// The same value, the gradient of no parameter: detach() of each of them, so that the structure above them stays visible.
[[gnu::cold]] constexpr id with_detached_parameters(builder& g, id root) {
  const node_set needed = below(g, root);
  sequence<id> place(root + 1, none_id);
  for (id i = 0; i <= root; ++i) {
    if (!needed[i]) continue;
    node v = g.n[i];
    if (v.a >= 0) v.a = place[v.a];
    if (v.b >= 0) v.b = place[v.b];
    if (v.c >= 0) v.c = place[v.c];
    place[i] = v.what == op::param ? make::unary(g, op::detach, i) : g.emit(v);
  }
  return place[root];
}
// The graph that grad() follows. Where the formula shows the input another weight, that one meets x, and W' meets a
// constant: together they give dx and the gradients of the parameters; y itself is nobody's result here.
constexpr builder capture_to_differentiate(const layer_formula& f, lowering how) {
  if (f.adapter.weight_seen_backward == nullptr) return capture(f, how, true);
  builder g;
  const scope p{&g};
  const ex w = adapted_weight(f, p), b = adapted_bias(f, p), x = f.kind.input(p, w);
  const ex seen = f.adapter.weight_seen_backward(p, f.kind.matrix(p, f.kind.weight(p)));
  const ex none_added{&g, make::zero_of(g, b.i, b.i)};
  const ex fixed = how == lowering::by_rows ? ex{&g, with_detached_parameters(g, seen.i)} : detach(seen);
  const ex y = f.kind.run(p, w, b, detach(x), how) + f.kind.run(p, fixed, none_added, x, how);
  g.give(y.i, "y");
  return simplified(g, how);
}
constexpr builder capture_literal(const layer_formula& f) { return capture(f, lowering::literal, true); }
constexpr builder capture_forward(const layer_formula& f) { return capture(f, lowering::fast, false); }
// W' built once per change of the parameters: for adapters whose side branch costs more than that copy.
constexpr builder capture_folded(const layer_formula& f) { return values_only(capture(f, lowering::literal, false)); }
constexpr builder capture_literal_backward(const layer_formula& f) {
  return canonical(grad(capture_to_differentiate(f, lowering::literal)));
}
constexpr builder capture_backward(const layer_formula& f) {
  return simplify(rewrite(grad(capture_to_differentiate(f, lowering::fast)), value_rule));
}
// For training with few rows: the parameters change before every call, and nothing is multiplied out that the rows can
// pass through.
constexpr builder capture_forward_by_rows(const layer_formula& f) { return capture(f, lowering::by_rows, false); }
constexpr builder capture_backward_by_rows(const layer_formula& f) {
  return simplify_norms(rewrite(grad(capture_to_differentiate(f, lowering::by_rows)), value_rule));
}
// For training with many rows, where the branch is no part of a product: the adapter is in a copy of the weight, which meets
// the rows, and W' as a formula meets a constant, for the gradients of its parameters. None where the input sees another
// weight.
constexpr builder capture_forward_in_weight(const layer_formula& f) {
  return simplify_in_weight(rewrite(capture(f, lowering::literal, false), value_rule));
}
constexpr builder capture_backward_in_weight(const layer_formula& f) {
  builder g;
  const scope p{&g};
  const ex w = adapted_weight(f, p), b = adapted_bias(f, p), x = f.kind.input(p, w);
  const ex none_added{&g, make::zero_of(g, b.i, b.i)};
  const ex y =
      f.kind.run(p, w, b, detach(x), lowering::fast) + f.kind.run(p, detach(w), none_added, x, lowering::literal);
  g.give(y.i, "y");
  return simplify_in_weight(factors_first(simplify(rewrite(grad(simplify(g)), value_rule))));
}
constexpr builder capture_weight(const layer_formula& f) {
  builder g;
  const scope p{&g};
  g.give(f.kind.stored(p, adapted_weight(f, p)).i, "weight");
  const ex b = adapted_bias(f, p);
  if ((*b).what != op::zero) g.give(b.i, "bias");
  return canonical(g);
}
constexpr builder capture_unmerge_weight(const layer_formula& f) {
  return unmerge(capture_weight(f), "weight", "weight").g;
}
constexpr builder capture_unmerge_bias(const layer_formula& f) { return unmerge(capture_weight(f), "bias", "bias").g; }
// W' and b', and the values that unmerging the weight will need.
constexpr builder capture_merge(const layer_formula& f) {
  builder g = capture_weight(f);
  for (const id i : unmerge(g, "weight", "weight").kept_from) g.give(i, "kept");
  return g;
}
struct unmerge_facts {
  bool weight = false, bias = false;  // the formula can be solved for it
  int kept = 0;                       // values of the merge that solving it for the weight needs
};
constexpr unmerge_facts unmerge_facts_of(const layer_formula& f) {
  const builder g = capture_weight(f);
  const unmerging w = unmerge(g, "weight", "weight"), b = unmerge(g, "bias", "bias");
  return {w.possible, b.possible && b.kept_from.empty(), w.kept_from.size()};
}

// A graph of just the size it needs. The compiler evaluates the function once, into room that most layers do with, and a
// second time only for what is larger.
template <builder (*Function)(const layer_formula&), class Layer> struct captured {
  static constexpr auto roomy = store<48, 32, 8, 16, 16>(Function(Layer::value));
  static constexpr graph_counts n = roomy.of;
  static constexpr auto exact() {
    if constexpr (roomy.fits())
      return store<n.nodes, n.sizes, n.paths, n.needs, n.outs>(roomy);
    else
      return store<n.nodes, n.sizes, n.paths, n.needs, n.outs>(Function(Layer::value));
  }
  static constexpr auto stored = exact();
};

template <class Kind, class Adapter, bool Bias> struct derived {
  static constexpr layer_formula value = layer_of<Kind, Adapter, Bias>();
  static constexpr graph literal = captured<capture_literal, derived>::stored;
  static constexpr graph literal_backward = captured<capture_literal_backward, derived>::stored;
  static constexpr graph forward = captured<capture_forward, derived>::stored;
  static constexpr graph folded = captured<capture_folded, derived>::stored;
  static constexpr graph backward = captured<capture_backward, derived>::stored;
  static constexpr graph merge = captured<capture_merge, derived>::stored;
  static constexpr graph unmerge_weight = captured<capture_unmerge_weight, derived>::stored;
  static constexpr graph unmerge_bias = captured<capture_unmerge_bias, derived>::stored;
  static constexpr unmerge_facts unmerging = unmerge_facts_of(value);
};

}  // namespace graft
