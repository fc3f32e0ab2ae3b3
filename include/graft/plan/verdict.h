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

// The target that the options name; the CPU where they name none.
template <class Option> constexpr const target* target_named() {
  if constexpr (requires { Option::at.to; })
    return Option::at.to;
  else
    return nullptr;
}
template <class... Options> constexpr const target& first_target() {
  const target* const named[] = {target_named<Options>()..., &cpu_target};
  for (const target* t : named)
    if (t != nullptr) return *t;
  return cpu_target;
}
template <class... Options> struct chosen { static constexpr const target& to = first_target<Options...>(); };

// The formula alone, with the requirement that it keeps the shapes of weight and bias as the two outputs' own.
constexpr builder capture_formula(const layer_formula& f) {
  builder g;
  const scope p{&g};
  const ex W = f.kind.matrix(p, f.kind.weight(p)), b = base_bias(f, p);
  const ex adapted[2] = {f.adapter.weight(p, W), f.adapter.adapted_bias(p, b, {W, b})}, base[2] = {W, b};
  g.give(adapted[0].i, "weight"), g.give(adapted[1].i, "bias");
  g.give(base[0].i, "base weight"), g.give(base[1].i, "base bias");
  return canonical(g);
}
// Shared by all layers of a kind with one adapter, as the trials below are.
template <class Layer> struct captured_formula {
  static constexpr graph g = captured<capture_formula, derived_of<Layer>>::stored;
};
// The first size in which the formula's result differs from what it replaces: its output and axis.
struct shape_change {
  int output = -1, axis = 0;
};
constexpr shape_change changed_shape(const graph& g, const size_values& s) {
  for (int k = 0; k < 2; ++k)
    for (int axis = 0; axis < 4; ++axis) {
      const long long now = g.sizes.value(g[g.out[k].at].d[axis], s),
                      before = g.sizes.value(g[g.out[k + 2].at].d[axis], s);
      if (now != unknown && before != unknown && now != before) return {k, axis};
    }
  return {};
}

// A formula may call what is not constexpr, and compilers bound the steps of a constant expression: these concepts try
// where failing is no error. Small formulas are derived without a trial. The graphs live and die inside plain functions:
// clang 14 takes nothing that has a destructor inside a template argument, nvcc no template argument that is a function.
constexpr bool formula_works(const layer_formula& f) { return !capture_formula(f).n.empty(); }
constexpr bool forward_works(const layer_formula& f) { return fuse(capture_forward(f)).launches.size() >= 0; }
constexpr bool folded_works(const layer_formula& f) { return !capture_folded(f).n.empty(); }
constexpr bool literal_backward_works(const layer_formula& f) { return !capture_literal_backward(f).n.empty(); }
constexpr bool backward_works(const layer_formula& f) { return !capture_backward(f).n.empty(); }
constexpr bool unmerge_works(const layer_formula& f) { return unmerge_facts_of(f).kept >= 0; }

template <class Derived>
concept formula_evaluates = requires {
  typename constant<formula_works(Derived::value)>;
};
template <class Layer> inline constexpr bool is_large = captured_formula<Layer>::g.size > 40;
template <class Derived>
concept derivations_evaluate = requires {
  typename constant<forward_works(Derived::value)>;
  typename constant<folded_works(Derived::value)>;
  typename constant<literal_backward_works(Derived::value)>;
  typename constant<backward_works(Derived::value)>;
  typename constant<unmerge_works(Derived::value)>;
};
template <class Layer>
concept graphs_evaluate = !is_large<Layer> || derivations_evaluate<derived_of<Layer>>;

void as_expression(ex);  // only named: what converts to an expression
template <class Layer>
concept has_formula = adapter_formula<typename Layer::adapter> && requires(scope p, ex W) {
  as_expression(Layer::adapter::weight(p, W));
} && formula_evaluates<derived_of<Layer>>;

// The sizes that the layer's type gives are dyn or at least 1; a padding may be 0.
template <int N> constexpr named_size first_wrong(const named_size (&sizes)[N]) {
  for (const named_size& n : sizes)
    if (n.value != dyn && n.value < (same_text(n.name, "padding") ? 0 : 1)) return n;
  return {nullptr, 0};
}

template <class Layer> struct checks {
  static constexpr graph g = captured_formula<Layer>::g;
  static constexpr size_values sizes = static_sizes<Layer>(g);
  static constexpr named_size wrong = first_wrong(Layer::sizes);
  static constexpr id empty = first_empty(g, sizes);
  static constexpr const requirement* violated = first_violated(g, sizes);
  static constexpr shape_change changed = changed_shape(g, sizes);
};

// The facts of each kind of mistake.
template <class Layer> struct wrong_size {
  static constexpr text where = checks<Layer>::wrong.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct faulty_name {
  static constexpr text where = checks<Layer>::g.bad.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct empty_tensor {
  using check = checks<Layer>;
  static constexpr text where = located(check::g, check::empty);
  static constexpr int line = check::g[check::empty].line;
  static constexpr long long size = smallest_size(check::g, check::empty, check::sizes);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct size_mistake {
  using check = checks<Layer>;
  static constexpr requirement r = *check::violated;
  static constexpr long long lhs = check::g.sizes.value(r.lhs, check::sizes);
  static constexpr long long rhs = check::g.sizes.value(r.rhs, check::sizes);
  static constexpr text where = located(check::g, r);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct shape_mistake {
  using check = checks<Layer>;
  static constexpr id at = check::g.out[check::changed.output].at;
  static constexpr id base = check::g.out[check::changed.output + 2].at;
  static constexpr int line = check::g[at].line;
  static constexpr long long now = check::g.sizes.value(check::g[at].d[check::changed.axis], check::sizes);
  static constexpr long long expected = check::g.sizes.value(check::g[base].d[check::changed.axis], check::sizes);
  static constexpr text where = shaped(check::g, at);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct graph_break {
  static constexpr plan_facts facts = plans<derived_of<Layer>, cpu_target>::forward;
  static constexpr node at = derived_of<Layer>::forward[facts.first_break];
  static constexpr text where = located(derived_of<Layer>::forward, facts.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct no_gradient {
  // grad() only adds nodes, so the position is one in the formula.
  static constexpr failure at = grad(capture_literal(derived_of<Layer>::value)).bad;
  static constexpr text where = located(derived_of<Layer>::literal, at.at);
  using words = decltype(diagnostic::quoted<where>());
};

template <class Layer> constexpr auto size_verdict() {
  using A = typename Layer::adapter;
  using m = size_mistake<Layer>;
  using enum requirement::kind;
  using namespace diagnostic;
  if constexpr (m::r.what == inner)
    return type_is<inner_sizes_differ<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == same)
    return type_is<sizes_differ<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == square)
    return type_is<matrix_is_not_square<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == at_most)
    return type_is<size_is_too_large<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else
    return type_is<size_is_not_divisible<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
}
template <class Layer> constexpr auto fault_verdict() {
  using A = typename Layer::adapter;
  constexpr failure bad = captured_formula<Layer>::g.bad;
  if constexpr (bad.what == fault::too_many_sizes)
    return type_is<diagnostic::formula_has_too_many_sizes<Layer, A, max_names>>{};
  else if constexpr (bad.what == fault::name_is_taken)
    return type_is<diagnostic::name_is_taken<Layer, A, typename faulty_name<Layer>::words, bad.line>>{};
  else
    return type_is<
        diagnostic::size_is_not_positive<Layer, A, typename faulty_name<Layer>::words, bad.line, bad.number>>{};
}
template <class Layer> constexpr auto break_verdict() {
  using A = typename Layer::adapter;
  using m = graph_break<Layer>;
  constexpr int count = m::facts.breaks;
  if constexpr (same_text(m::at.name, erased_name))
    return type_is<diagnostic::type_erased_adapter_breaks_the_graph<Layer, A, typename m::words, m::at.line, count>>{};
  else if constexpr (m::at.tb)
    return type_is<diagnostic::data_dependent_size_breaks_the_graph<Layer, A, typename m::words, m::at.line, count>>{};
  else
    return type_is<diagnostic::host_function_breaks_the_graph<Layer, A, typename m::words, m::at.line, count>>{};
}

template <class Layer, class... Options> constexpr auto verdict() {
  constexpr bool whole = asked<fullgraph, Options...>, trained = asked<training, Options...>;
  using A = typename Layer::adapter;
  using element = typename Layer::element;
  if constexpr (!has_formula<Layer>) {
    return type_is<diagnostic::not_an_adapter<Layer, A>>{};
  } else if constexpr (!requires { storage<element>::type; }) {
    return type_is<diagnostic::not_an_element_type<Layer, element>>{};
  } else if constexpr (captured_formula<Layer>::g.bad.what != fault::none) {
    return fault_verdict<Layer>();
  } else if constexpr (!graphs_evaluate<Layer>) {
    return type_is<diagnostic::formula_is_too_large<Layer, A>>{};
  } else if constexpr (checks<Layer>::wrong.name != nullptr) {
    return type_is<
        diagnostic::size_is_not_positive<Layer, A, typename wrong_size<Layer>::words, 0, checks<Layer>::wrong.value>>{};
  } else if constexpr (checks<Layer>::empty >= 0) {
    using m = empty_tensor<Layer>;
    return type_is<diagnostic::size_is_not_positive<Layer, A, typename m::words, m::line, m::size>>{};
  } else if constexpr (checks<Layer>::violated != nullptr) {
    return size_verdict<Layer>();
  } else if constexpr (checks<Layer>::changed.output >= 0) {
    using m = shape_mistake<Layer>;
    return type_is<diagnostic::formula_changes_the_shape<Layer, A, typename m::words, m::line, m::now, m::expected>>{};
  } else if constexpr (whole && plans<derived_of<Layer>, cpu_target>::forward.breaks > 0) {
    return break_verdict<Layer>();
  } else if constexpr (trained && derived_of<Layer>::backward.bad.what == fault::not_differentiable) {
    using m = no_gradient<Layer>;
    return type_is<diagnostic::not_differentiable<Layer, A, typename m::words, m::at.line>>{};
  } else {
    return type_is<plan_of<Layer, chosen<Options...>::to>>{};
  }
}

}  // namespace detail

}  // namespace graft
