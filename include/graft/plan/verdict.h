// SPDX-License-Identifier: Apache-2.0
// The verdict on a layer: its facts, or the one diagnostic that says what is wrong with it. Checks run from what makes
// the others meaningless (no formula, too large) to what only some programs ask for (fullgraph, training).
#pragma once
#include <graft/adapter/erased.h>
#include <graft/plan/diagnostic.h>
#include <graft/plan/facts.h>
#include <graft/plan/require.h>

namespace graft {

struct fullgraph {};  // no graph break
struct training {};   // a gradient for every parameter

namespace detail {

template <class A, class B> inline constexpr bool same_type = false;
template <class A> inline constexpr bool same_type<A, A> = true;
template <class Wanted, class... Options> inline constexpr bool asked = (same_type<Wanted, Options> || ...);

template <class T> struct type_is {
  using type = T;  // names a diagnostic without instantiating it: that would already be the error
};
template <bool> struct constant {};
// Stands in for a layer whose adapter has no usable formula, so that its one error is not followed by others.
template <class Layer> struct without_adapter : Layer { using adapter = none; };

// The formula alone. Conditions from `own` on say that it keeps the shapes of weight and bias.
struct formula_graph {
  builder g{};
  int own = 0;
};
template <class Kind, class Adapter, bool Bias> constexpr formula_graph capture_formula() {
  formula_graph f;
  const scope p{&f.g};
  const ex W = Kind::matrix(p, Kind::weight(p)), b = base_bias<Kind, Bias>(p);
  const ex adapted[2] = {Adapter::weight(p, W), adapted_bias<Adapter>(p, b)}, base[2] = {W, b};
  f.own = f.g.needs;
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 4; ++k)
      f.g.require(requirement::kind::same, (*adapted[i]).d[k], (*base[i]).d[k], adapted[i].i, (*adapted[i]).line);
  return f;
}
template <class Kind, class Adapter, bool Bias> struct formula {
  static constexpr formula_graph value = capture_formula<Kind, Adapter, Bias>();
  static constexpr bool large = value.g.size > 40;
};
template <class Layer> using formula_of = formula<typename Layer::kind, typename Layer::adapter, Layer::has_bias>;

// A formula may call what is not constexpr, and compilers bound the steps of a constant expression: these concepts try
// where failing is no error. Small formulas are derived without a trial.
template <class Kind, class Adapter, bool Bias>
concept formula_evaluates = requires {
  typename constant<(capture_formula<Kind, Adapter, Bias>().own >= 0)>;
};
template <class Kind, class Adapter, bool Bias>
concept graphs_evaluate = !formula<Kind, Adapter, Bias>::large || requires {
  typename constant<(fuse(capture<Kind, Adapter, Bias>(lowering::fast, false)).kernels >= 0)>;
  typename constant<(compact(values_only(capture<Kind, Adapter, Bias>(lowering::literal, false))).size > 0)>;
  typename constant<(compact(grad(capture<Kind, Adapter, Bias>(lowering::literal, true))).size > 0)>;
  typename constant<(compact(values_only(grad(capture<Kind, Adapter, Bias>(lowering::fast, true)))).size > 0)>;
  typename constant<unmerge(capture_merge<Kind, Adapter, Bias>(), "weight", "weight").facts.possible>;
};

void as_expression(ex);  // only named: what converts to an expression
template <class Layer>
concept has_formula = adapter_formula<typename Layer::adapter> && requires(scope p, ex W) {
  as_expression(Layer::adapter::weight(p, W));
} && formula_evaluates<typename Layer::kind, typename Layer::adapter, Layer::has_bias>;

template <class Layer> constexpr failure forward_fault() {
  if constexpr (formula_of<Layer>::value.g.bad.what != fault::none)
    return formula_of<Layer>::value.g.bad;
  else if constexpr (!graphs_evaluate<typename Layer::kind, typename Layer::adapter, Layer::has_bias>)
    return {fault::too_many_nodes};
  else
    return derived_of<Layer>::literal.bad.what != fault::none ? derived_of<Layer>::literal.bad
                                                              : derived_of<Layer>::forward.bad;
}

// The sizes that the layer's type gives are dyn or at least 1; a padding may be 0.
template <int N> constexpr named_size first_wrong(const named_size (&sizes)[N]) {
  for (const named_size& n : sizes)
    if (n.value != dyn && n.value < (same_text(n.name, "padding") ? 0 : 1)) return n;
  return {nullptr, 0};
}

template <class Layer> struct checks {
  using f = formula_of<Layer>;
  static constexpr size_values sizes = static_sizes<Layer>(f::value.g);
  static constexpr named_size wrong = first_wrong(Layer::sizes);
  static constexpr id empty = first_empty(f::value.g, sizes);
  static constexpr const requirement* violated = first_violated(f::value.g, sizes);
  static constexpr bool keeps_shape = violated == nullptr || violated - f::value.g.need < f::value.own;
};

// The facts of each kind of mistake.
template <class Layer> struct wrong_size {
  static constexpr text where = checks<Layer>::wrong.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct empty_tensor {
  using check = checks<Layer>;
  static constexpr text where = located(check::f::value.g, check::empty);
  static constexpr int line = check::f::value.g[check::empty].line;
  static constexpr long long size = smallest_size(check::f::value.g, check::empty, check::sizes);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct size_mistake {
  using check = checks<Layer>;
  static constexpr requirement r = *check::violated;
  static constexpr long long lhs = check::f::value.g.sizes.value(r.lhs, check::sizes);
  static constexpr long long rhs = check::f::value.g.sizes.value(r.rhs, check::sizes);
  static constexpr text where = check::keeps_shape ? located(check::f::value.g, r) : shaped(check::f::value.g, r.at);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct graph_break {
  static constexpr id first = plans<derived_of<Layer>>::forward.first_break;
  static constexpr int count = plans<derived_of<Layer>>::forward.breaks;
  static constexpr node at = derived_of<Layer>::forward[first];
  static constexpr text where = located(derived_of<Layer>::forward, first);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct no_gradient {
  // grad() only adds nodes, so the position is one in the formula.
  static constexpr failure at = grad(derived_of<Layer>::literal_made).bad;
  static constexpr text where = located(derived_of<Layer>::literal, at.at);
  using words = decltype(diagnostic::quoted<where>());
};

template <class Layer> constexpr auto size_verdict() {
  using A = typename Layer::adapter;
  using m = size_mistake<Layer>;
  using enum requirement::kind;
  using namespace diagnostic;
  if constexpr (!checks<Layer>::keeps_shape)
    return type_is<formula_changes_the_shape<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == inner)
    return type_is<inner_sizes_differ<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == same)
    return type_is<sizes_differ<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == square)
    return type_is<matrix_is_not_square<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else
    return type_is<size_is_not_divisible<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
}
template <class Layer> constexpr auto break_verdict() {
  using A = typename Layer::adapter;
  using m = graph_break<Layer>;
  if constexpr (same_text(m::at.name, erased_name))
    return type_is<
        diagnostic::type_erased_adapter_breaks_the_graph<Layer, A, typename m::words, m::at.line, m::count>>{};
  else if constexpr (m::at.tb)
    return type_is<
        diagnostic::data_dependent_size_breaks_the_graph<Layer, A, typename m::words, m::at.line, m::count>>{};
  else
    return type_is<diagnostic::host_function_breaks_the_graph<Layer, A, typename m::words, m::at.line, m::count>>{};
}
template <class Layer> constexpr auto training_verdict() {
  using A = typename Layer::adapter;
  if constexpr (constexpr failure bad = derived_of<Layer>::backward.bad; bad.what == fault::too_many_nodes) {
    return type_is<diagnostic::formula_is_too_large<Layer, A, bad.line, max_nodes>>{};
  } else if constexpr (bad.what == fault::not_differentiable) {
    using m = no_gradient<Layer>;
    return type_is<diagnostic::not_differentiable<Layer, A, typename m::words, m::at.line>>{};
  } else {
    return type_is<plan_of<Layer>>{};
  }
}

template <class Layer, class... Options> constexpr auto verdict() {
  constexpr bool whole = asked<fullgraph, Options...>, trained = asked<training, Options...>;
  using A = typename Layer::adapter;
  using element = typename Layer::element;
  if constexpr (!has_formula<Layer>) {
    return type_is<diagnostic::not_an_adapter<Layer, A>>{};
  } else if constexpr (!requires { storage<element>::type; }) {
    return type_is<diagnostic::not_an_element_type<Layer, element>>{};
  } else if constexpr (forward_fault<Layer>().what == fault::too_many_nodes) {
    return type_is<diagnostic::formula_is_too_large<Layer, A, forward_fault<Layer>().line, max_nodes>>{};
  } else if constexpr (checks<Layer>::wrong.name != nullptr) {
    return type_is<
        diagnostic::size_is_not_positive<Layer, A, typename wrong_size<Layer>::words, 0, checks<Layer>::wrong.value>>{};
  } else if constexpr (checks<Layer>::empty >= 0) {
    using m = empty_tensor<Layer>;
    return type_is<diagnostic::size_is_not_positive<Layer, A, typename m::words, m::line, m::size>>{};
  } else if constexpr (checks<Layer>::violated != nullptr) {
    return size_verdict<Layer>();
  } else if constexpr (whole && plans<derived_of<Layer>>::forward.breaks > 0) {
    return break_verdict<Layer>();
  } else if constexpr (whole && (storage<element>::type == dtype::nf4 || storage<element>::type == dtype::int8)) {
    return type_is<diagnostic::storage_has_no_lowering<Layer, element>>{};
  } else if constexpr (trained) {
    return training_verdict<Layer>();
  } else {
    return type_is<plan_of<Layer>>{};
  }
}

}  // namespace detail

}  // namespace graft
