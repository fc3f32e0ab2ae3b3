// SPDX-License-Identifier: Apache-2.0
// compile<Layer, Options…>: the layer's plan as compile-time facts, and its verdict. The type inherits from the verdict;
// where something is wrong the verdict is a diagnostic, whose one static_assert is the one error of the program.
//     using q = compile<q_proj, fullgraph>;
//     static_assert(q::kernels == 1 && q::mergeable);
#pragma once
#include <graft/adapter/erased.h>
#include <graft/derive/cost.h>
#include <graft/derive/layers.h>
#include <graft/plan/diagnostic.h>
#include <graft/plan/program.h>
#include <graft/plan/require.h>

namespace graft {

struct fullgraph {};  // no graph break
struct training {};   // a gradient for every parameter

// Plans hold no sizes: like the graphs, they are shared by all layers of a kind with one adapter.
template <class Derived> struct plans {
  static constexpr plan forward = fuse(Derived::forward);
  static constexpr unsigned long long key = encode(Derived::forward, forward).key;
  static constexpr cost_basis forward_basis = basis_of(Derived::forward), folded_basis = basis_of(Derived::folded),
                              backward_basis = basis_of(Derived::backward);
};

namespace detail {

template <class A, class B> inline constexpr bool same_type = false;
template <class A> inline constexpr bool same_type<A, A> = true;
template <class Wanted, class... Options> inline constexpr bool asked = (same_type<Wanted, Options> || ...);

template <class T> struct type_is {
  using type = T;  // names a diagnostic without instantiating it: that would already be the error
};

template <class Layer> struct facts {
  using d = derived_of<Layer>;
  static constexpr size_values sizes = static_sizes<Layer>(d::literal);
  static constexpr const requirement* violated = first_violated(d::literal, sizes);
};
template <class Layer> struct size_mistake {
  static constexpr requirement r = *facts<Layer>::violated;
  static constexpr long long lhs = facts<Layer>::d::literal.sizes.value(r.lhs, facts<Layer>::sizes);
  static constexpr long long rhs = facts<Layer>::d::literal.sizes.value(r.rhs, facts<Layer>::sizes);
  static constexpr text where = located(facts<Layer>::d::literal, r);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct graph_break {
  static constexpr int count = plans<derived_of<Layer>>::forward.breaks;
  static constexpr node at = facts<Layer>::d::forward[plans<derived_of<Layer>>::forward.first_break];
  static constexpr text where = located(facts<Layer>::d::forward, plans<derived_of<Layer>>::forward.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct no_gradient {
  static constexpr failure at = facts<Layer>::d::backward.bad;
  static constexpr text where = located(facts<Layer>::d::backward, at.at);
  using words = decltype(diagnostic::quoted<where>());
};

template <class Layer> constexpr auto size_verdict() {
  using m = size_mistake<Layer>;
  using enum requirement::kind;
  if constexpr (m::r.what == inner)
    return type_is<diagnostic::inner_sizes_differ<typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == same)
    return type_is<diagnostic::sizes_differ<typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == square)
    return type_is<diagnostic::matrix_is_not_square<typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else
    return type_is<diagnostic::size_is_not_divisible<typename m::words, m::r.line, m::lhs, m::rhs>>{};
}
template <class Layer> constexpr auto break_verdict() {
  using m = graph_break<Layer>;
  if constexpr (same_text(m::at.name, erased_name))
    return type_is<diagnostic::type_erased_adapter_breaks_the_graph<typename m::words, m::at.line, m::count>>{};
  else if constexpr (m::at.tb)
    return type_is<diagnostic::data_dependent_size_breaks_the_graph<typename m::words, m::at.line, m::count>>{};
  else
    return type_is<diagnostic::host_function_breaks_the_graph<typename m::words, m::at.line, m::count>>{};
}

template <class Layer, bool FullGraph, bool Training> constexpr auto verdict() {
  using adapter = typename Layer::adapter;
  using element = typename Layer::element;
  if constexpr (!adapter_formula<adapter>) {
    return type_is<diagnostic::not_an_adapter<adapter, false>>{};
  } else if constexpr (!requires { storage<element>::type; }) {
    return type_is<diagnostic::not_an_element_type<element, false>>{};
  } else if constexpr (facts<Layer>::d::literal.bad.what == fault::too_many_nodes) {
    return type_is<diagnostic::formula_is_too_large<facts<Layer>::d::literal.size, max_nodes>>{};
  } else if constexpr (facts<Layer>::violated != nullptr) {
    return size_verdict<Layer>();
  } else if constexpr (FullGraph && plans<derived_of<Layer>>::forward.breaks > 0) {
    return break_verdict<Layer>();
  } else if constexpr (FullGraph && (storage<element>::type == dtype::nf4 || storage<element>::type == dtype::int8)) {
    return type_is<diagnostic::storage_has_no_lowering<element, false>>{};
  } else if constexpr (Training && facts<Layer>::d::backward.bad.what == fault::not_differentiable) {
    using m = no_gradient<Layer>;
    return type_is<diagnostic::not_differentiable<typename m::words, m::at.line, false>>{};
  } else {
    return type_is<diagnostic::none>{};
  }
}

}  // namespace detail

template <class Layer, class... Options>
struct compile : decltype(detail::verdict<Layer, detail::asked<fullgraph, Options...>,
                                          detail::asked<training, Options...>>())::type {
  using d = derived_of<Layer>;
  static constexpr int kernels = plans<d>::forward.kernels;
  static constexpr int graph_breaks = plans<d>::forward.breaks;
  static constexpr unsigned long long key = plans<d>::key;
  // Merging is evaluating W'; unmerging from W' alone is possible where W occurs once in the formula. Where it occurs
  // again in a small factor (DoRA's norm) the merge keeps `kept` tensors for the way back.
  static constexpr bool mergeable = d::merge.bad.what == fault::none;
  static constexpr bool unmergeable = d::weight_facts.possible && d::weight_facts.kept == 0;
  static constexpr int kept = d::weight_facts.kept;
};

template <class Layer> inline constexpr bool mergeable = compile<Layer>::mergeable;
template <class Layer> inline constexpr bool unmergeable = compile<Layer>::unmergeable;

template <class Layer> constexpr bool static_sizes_known() {
  for (const named_size& n : Layer::sizes)
    if (n.value == dyn) return false;
  const size_table& z = derived_of<Layer>::literal.sizes;
  const size_values s = static_sizes<Layer>(derived_of<Layer>::literal);
  for (int i = 0; i < z.count; ++i)
    if (z.e[i].what == size_entry::kind::name && s.v[i] == unknown && !same_text(z.e[i].name, "tokens")) return false;
  return true;
}
// The cost of a forward or backward call on `tokens` tokens of a layer whose sizes are all known.
template <class Layer> constexpr size_values sizes_at(const graph& g, long long tokens) {
  size_values s = static_sizes<Layer>(g);
  if (const int at = g.sizes.find("tokens"); at >= 0) s.v[at] = tokens;
  return s;
}
template <class Layer> constexpr cost cost_for(const graph& g, const cost_basis& b, long long tokens) {
  constexpr dtype stored = storage<typename Layer::element>::type;
  constexpr dtype moved = stored == dtype::nf4 || stored == dtype::int8 ? dtype::bf16 : stored;
  return cost_of(g, b, sizes_at<Layer>(g, tokens), stored, moved);
}
template <class Layer> constexpr cost branch_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::forward, plans<derived_of<Layer>>::forward_basis, tokens);
}
template <class Layer> constexpr cost folded_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::folded, plans<derived_of<Layer>>::folded_basis, tokens);
}
template <class Layer> constexpr bool folds(long long tokens) {
  return worth_folding(branch_cost<Layer>(tokens), folded_cost<Layer>(tokens));
}
template <class Layer> constexpr cost forward_cost(long long tokens) {
  const cost branch = branch_cost<Layer>(tokens), folded = folded_cost<Layer>(tokens);
  return worth_folding(branch, folded) ? folded : branch;
}
template <class Layer> constexpr cost backward_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::backward, plans<derived_of<Layer>>::backward_basis, tokens);
}

}  // namespace graft
