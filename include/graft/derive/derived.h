// SPDX-License-Identifier: Apache-2.0
// All graphs that follow from the formula of one adapted layer: forward, backward (dgrad and wgrad), merge, unmerge,
// with the adapter as a branch, folded or applied by rows. Each is a plain function of a layer_formula: a kind of
// layer, an adapter, and whether there is a bias, all as values. Sizes are names, so layers that agree in these share
// the graphs, whatever their shapes. derived<> evaluates the functions while compiling, model/methods.h at load.
#pragma once
#include <graft/adapter/none.h>
#include <graft/derive/folded_training.h>
#include <graft/derive/grad.h>
#include <graft/derive/layer_kinds.h>
#include <graft/derive/merge.h>
#include <graft/derive/reassociate_wgrads.h>

namespace graft {

struct layer_formula {
  kind_rules kind{};
  formula adapter{};
  bool has_bias = false;
  // Further adapters on the same base act in turn, each on the weight that the ones before it made. The tensors of each
  // have a path of their own.
  const formula* extra = nullptr;
  const char* const* extra_paths = nullptr;
  int extra_count = 0;
};
template <class Kind, class Adapter, bool Bias> constexpr layer_formula layer_of() {
  return {rules_of<Kind>(), formula_of<Adapter>(), Bias};
}
constexpr layer_formula without_adapter(layer_formula f) {
  f.adapter = formula_of<none>(), f.extra_count = 0;
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
  for (int i = 0; i < f.extra_count; ++i) w = f.extra[i].compose_weight(p.in(f.extra_paths[i]), w, base);
  return w;
}
[[gnu::cold]] constexpr ex adapted_bias(const layer_formula& f, scope p) {
  const base_tensors base{f.kind.matrix(p, f.kind.weight(p)), base_bias(f, p)};
  ex b = f.adapter.adapted_bias(p, base.bias, base);
  for (int i = 0; i < f.extra_count; ++i) b = f.extra[i].adapted_bias(p.in(f.extra_paths[i]), b, base);
  return b;
}

constexpr builder simplified(const builder& g, lowering level) {
  switch (level) {
    case lowering::literal: break;
    case lowering::fast: return simplify(g);
    case lowering::by_rows: return simplify_norms(g);
  }
  return canonical(g);
}
// Captures y of the adapted layer. With keep_gradients detach() stays in the graph, because grad() follows.
constexpr builder capture(const layer_formula& f, lowering level, bool keep_gradients) {
  builder g;
  const scope p{&g};
  g.add_output(adapted_weight(f, p).i, "weight");
  g.add_output(adapted_bias(f, p).i, "bias");
  if (!keep_gradients) g = rewrite(g, value_rule);
  const id w = g.result("weight"), b = g.result("bias");
  g.out.clear();
  const ex x = f.kind.input(p, {&g, w});
  g.add_output(f.kind.run(p, {&g, w}, {&g, b}, x, level).i, "y");
  return simplified(g, level);
}
// Copies the value at `root` with detach() around each parameter: the copy has no gradient for them, and the passes
// still see its structure.
[[gnu::cold]] constexpr id with_detached_parameters(builder& g, id root) {
  const node_set needed = dependencies(g, root);
  sequence<id> moved_to(root + 1, none_id);
  for (id i = 0; i <= root; ++i) {
    if (!needed[i]) continue;
    node v = g.n[i];
    if (v.a >= 0) v.a = moved_to[v.a];
    if (v.b >= 0) v.b = moved_to[v.b];
    if (v.c >= 0) v.c = moved_to[v.c];
    moved_to[i] = v.what == op::param ? make_node::unary(g, op::detach, i) : g.emit(v);
  }
  return moved_to[root];
}
// Captures the graph that grad() differentiates. Where the formula states another weight for dx, that weight multiplies
// x, and W' multiplies detach(x): the sum has the right dx and gradients of parameters, and its value is not used.
constexpr builder capture_to_differentiate(const layer_formula& f, lowering level) {
  if (f.adapter.input_gradient_weight == nullptr) return capture(f, level, true);
  builder g;
  const scope p{&g};
  const ex w = adapted_weight(f, p), b = adapted_bias(f, p), x = f.kind.input(p, w);
  const ex seen = f.adapter.input_gradient_weight(p, f.kind.matrix(p, f.kind.weight(p)));
  const ex zero_bias{&g, make_node::zero_of(g, b.i, b.i)};
  const ex fixed = level == lowering::by_rows ? ex{&g, with_detached_parameters(g, seen.i)} : detach(seen);
  const ex y = f.kind.run(p, w, b, detach(x), level) + f.kind.run(p, fixed, zero_bias, x, level);
  g.add_output(y.i, "y");
  return simplified(g, level);
}
constexpr builder capture_literal(const layer_formula& f) { return capture(f, lowering::literal, true); }
constexpr builder capture_forward(const layer_formula& f) { return capture(f, lowering::fast, false); }
// The folded form builds W' once per change of the parameters, for adapters whose branch costs more than that copy.
constexpr builder capture_folded(const layer_formula& f) { return values_only(capture(f, lowering::literal, false)); }
constexpr builder capture_literal_backward(const layer_formula& f) {
  return canonical(grad(capture_to_differentiate(f, lowering::literal)));
}
constexpr builder capture_backward(const layer_formula& f) {
  return simplify(rewrite(grad(capture_to_differentiate(f, lowering::fast)), value_rule));
}
// The form for training with few rows applies every factor to the rows (apply_by_rows.h) and multiplies no parameters
// with each other that the rows can pass through, because the parameters change before every call.
constexpr builder capture_forward_by_rows(const layer_formula& f) { return capture(f, lowering::by_rows, false); }
constexpr builder capture_backward_by_rows(const layer_formula& f) {
  return simplify_norms(rewrite(grad(capture_to_differentiate(f, lowering::by_rows)), value_rule));
}
// The form for training with many rows, where the branch is no part of a GEMM: forward multiplies x by a copy of the
// weight that holds the adapter. In the graph that is differentiated that copy is a constant, which gives dx, and W' as
// a formula multiplies detach(x), which gives the gradients of its parameters. It does not support
// input_gradient_weight.
constexpr builder capture_forward_folded(const layer_formula& f) {
  return simplify_folded(rewrite(capture(f, lowering::literal, false), value_rule));
}
constexpr builder capture_backward_folded(const layer_formula& f) {
  builder g;
  const scope p{&g};
  const ex w = adapted_weight(f, p), b = adapted_bias(f, p), x = f.kind.input(p, w);
  const ex zero_bias{&g, make_node::zero_of(g, b.i, b.i)};
  const ex y =
      f.kind.run(p, w, b, detach(x), lowering::fast) + f.kind.run(p, detach(w), zero_bias, x, lowering::literal);
  g.add_output(y.i, "y");
  return simplify_folded(reassociate_wgrads(simplify(rewrite(grad(simplify(g)), value_rule))));
}
constexpr builder capture_weight(const layer_formula& f) {
  builder g;
  const scope p{&g};
  g.add_output(f.kind.stored(p, adapted_weight(f, p)).i, "weight");
  const ex b = adapted_bias(f, p);
  if ((*b).what != op::zero) g.add_output(b.i, "bias");
  return canonical(g);
}
constexpr builder capture_unmerge_weight(const layer_formula& f) {
  return unmerge(capture_weight(f), "weight", "weight").g;
}
constexpr builder capture_unmerge_bias(const layer_formula& f) { return unmerge(capture_weight(f), "bias", "bias").g; }
// Captures W' and b', and as outputs "saved" the values that unmerging the weight needs.
constexpr builder capture_merge(const layer_formula& f) {
  builder g = capture_weight(f);
  for (const id i : unmerge(g, "weight", "weight").saved_from) g.add_output(i, "saved");
  return g;
}
struct unmerge_facts {
  bool weight = false, bias = false;  // whether the formula can be solved for W, and for b
  int saved = 0;                      // number of values of the merge that unmerging the weight needs
};
constexpr unmerge_facts unmerge_facts_of(const layer_formula& f) {
  const builder g = capture_weight(f);
  const unmerging w = unmerge(g, "weight", "weight"), b = unmerge(g, "bias", "bias");
  return {w.possible, b.possible && b.saved_from.empty(), w.saved_from.size()};
}

// Stores the graph that Function makes in arrays of exactly its size. The compiler evaluates Function once, into arrays
// that are large enough for most layers, and a second time only for larger graphs.
template <builder (*Function)(const layer_formula&), class Layer> struct captured {
  static constexpr auto preallocated = store_graph<48, 32, 8, 16, 16>(Function(Layer::value));
  static constexpr graph_counts n = preallocated.of;
  static constexpr auto exact() {
    if constexpr (preallocated.fits())
      return store_graph<n.nodes, n.sizes, n.paths, n.needs, n.outs>(preallocated);
    else
      return store_graph<n.nodes, n.sizes, n.paths, n.needs, n.outs>(Function(Layer::value));
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
