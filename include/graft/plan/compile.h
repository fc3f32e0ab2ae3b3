// SPDX-License-Identifier: Apache-2.0
// compile<Layer, Options…>: the facts of a layer type, checked at compile time. Where something is wrong it is a
// diagnostic instead, whose single static_assert is the only error of the program (plan/diagnostic.h).
//     using q = compile<q_proj, fullgraph>;
//     static_assert(q::kernels == 1 && q::mergeable);
// Checks that the others depend on run first (no formula, formula too large), those that an option requests run last.
#pragma once
#include <graft/adapter/erased.h>
#include <graft/plan/diagnostic.h>
#include <graft/plan/facts.h>
#include <graft/plan/kernel_reason.h>
#include <graft/plan/layer_cost.h>

namespace graft {

struct fullgraph {};   // requires that there is no graph break
struct training {};    // requires a gradient for every parameter
struct one_kernel {};  // requires one kernel per forward call on the target
// Makes the plan for a target other than the CPU:  compile<q_proj, fullgraph, for_target<sm_90>>
template <const target& Target> struct for_target {};

namespace detail {

template <class A, class B> inline constexpr bool same_type = false;
template <class A> inline constexpr bool same_type<A, A> = true;
template <class Wanted, class... Options> inline constexpr bool has_option = (same_type<Wanted, Options> || ...);

template <class T> struct type_is {
  using type = T;  // names a diagnostic without instantiating it, which would raise its error
};
template <bool> struct constant {};
// Replaces a layer whose adapter has no usable formula, so that no further errors follow the one message.
template <class Layer> struct without_adapter : Layer { using adapter = none; };

// The target that the options name, or the CPU.
template <class... Options> struct chosen { static constexpr const target& to = cpu_target; };
template <class Option, class... Options> struct chosen<Option, Options...> : chosen<Options...> {};
template <const target& Target, class... Options> struct chosen<for_target<Target>, Options...> {
  static constexpr const target& to = Target;
};

// Captures only the formula, with outputs for the adapted and the base weight and bias, whose shapes are compared.
constexpr builder capture_formula(const layer_formula& f) {
  builder g;
  const scope p{&g};
  const ex W = f.kind.matrix(p, f.kind.weight(p)), b = base_bias(f, p);
  const ex adapted[2] = {f.adapter.weight(p, W), f.adapter.adapted_bias(p, b, {W, b})}, base[2] = {W, b};
  g.add_output(adapted[0].i, "weight"), g.add_output(adapted[1].i, "bias");
  g.add_output(base[0].i, "base weight"), g.add_output(base[1].i, "base bias");
  return canonical(g);
}
// Layers of one kind with one adapter share this capture and the trials below.
template <class Layer> struct captured_formula {
  static constexpr graph g = captured<capture_formula, derived_of<Layer>>::stored;
};
// The output and axis of the first size in which the formula's result differs from the base tensor.
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

// A formula may call functions that are not constexpr, and compilers bound the steps of a constant expression. These
// concepts try the evaluation where a failure is no error; small formulas are derived without a trial. Graphs exist
// only inside plain functions: clang 14 accepts no object with a destructor as a template argument, nvcc no function.
constexpr bool formula_works(const layer_formula& f) { return !capture_formula(f).n.empty(); }
constexpr bool forward_works(const layer_formula& f) { return fuse(capture_forward(f)).launches.size() >= 0; }
constexpr bool folded_works(const layer_formula& f) { return !capture_folded(f).n.empty(); }
constexpr bool literal_backward_works(const layer_formula& f) { return !capture_literal_backward(f).n.empty(); }
constexpr bool backward_works(const layer_formula& f) { return !capture_backward(f).n.empty(); }
constexpr bool unmerge_works(const layer_formula& f) { return unmerge_facts_of(f).saved >= 0; }

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

void as_expression(ex);  // never defined; used in a requires-expression
template <class Layer>
concept has_formula = adapter_formula<typename Layer::adapter> && requires(scope p, ex W) {
  as_expression(Layer::adapter::weight(p, W));
} && formula_evaluates<derived_of<Layer>>;

// The first size of a layer type that is neither dyn nor at least 1; padding may be 0.
template <std::size_t N> constexpr named_size first_invalid_size(const named_size (&sizes)[N]) {
  for (const named_size& n : sizes)
    if (n.value != dyn && n.value < (same_text(n.name, "padding") ? 0 : 1)) return n;
  return {nullptr, 0};
}

template <class Layer> struct checks {
  static constexpr graph g = captured_formula<Layer>::g;
  static constexpr size_values sizes = static_sizes<Layer>(g);
  static constexpr named_size wrong = first_invalid_size(Layer::sizes);
  static constexpr id empty = first_empty(g, sizes);
  static constexpr const requirement* violated = first_violated(g, sizes);
  static constexpr shape_change changed = changed_shape(g, sizes);
};

// The following structs hold the template arguments of the diagnostics.
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
template <class Plan> struct several_kernels {
  static constexpr text where = Plan::why_several_kernels();
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct no_gradient {
  // grad() only appends nodes, so that the node is one of the formula.
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
  if constexpr (bad.what == formula_error::too_many_sizes)
    return type_is<diagnostic::formula_has_too_many_sizes<Layer, A, max_names>>{};
  else if constexpr (bad.what == formula_error::name_is_taken)
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
  constexpr bool requires_fullgraph = has_option<fullgraph, Options...>,
                 requires_training = has_option<training, Options...>, one = has_option<one_kernel, Options...>;
  using A = typename Layer::adapter;
  using element = typename Layer::element;
  if constexpr (!has_formula<Layer>) {
    return type_is<diagnostic::not_an_adapter<Layer, A>>{};
  } else if constexpr (!requires { storage<element>::type; }) {
    return type_is<diagnostic::not_an_element_type<Layer, element>>{};
  } else if constexpr (captured_formula<Layer>::g.bad.what != formula_error::none) {
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
  } else if constexpr (requires_fullgraph && plans<derived_of<Layer>, cpu_target>::forward.breaks > 0) {
    return break_verdict<Layer>();
  } else if constexpr (requires_training && derived_of<Layer>::backward.bad.what == formula_error::not_differentiable) {
    using m = no_gradient<Layer>;
    return type_is<diagnostic::not_differentiable<Layer, A, typename m::words, m::at.line>>{};
  } else if constexpr (one && plan_of<Layer, chosen<Options...>::to>::kernels != 1) {
    using planned = plan_of<Layer, chosen<Options...>::to>;
    using m = several_kernels<planned>;
    return type_is<diagnostic::more_than_one_kernel<Layer, A, typename m::words, planned::kernels>>{};
  } else {
    return type_is<plan_of<Layer, chosen<Options...>::to>>{};
  }
}

template <class Layer, class... Options> struct checked_compile {
  using verdict = decltype(detail::verdict<Layer, Options...>());
};
}  // namespace detail
template <class Layer, class... Options>
using compile = typename detail::checked_compile<Layer, Options...>::verdict::type;

template <class Layer> inline constexpr bool mergeable = compile<Layer>::mergeable;
template <class Layer> inline constexpr bool unmergeable = compile<Layer>::unmergeable;

}  // namespace graft
