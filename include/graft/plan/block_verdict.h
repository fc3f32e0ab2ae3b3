// SPDX-License-Identifier: Apache-2.0
// compile<Block, Options…>: the facts of a transformer block type, or the one diagnostic that says what is wrong with
// it. Diagnostics are those of layers (plan/compile.h). They name the path of the layer, the line of the block's
// formula and the sizes, and list the block in place of the layer and of the adapter.
#pragma once
#include <graft/plan/block_facts.h>
#include <graft/plan/compile.h>

namespace graft::detail {

constexpr bool block_evaluates(const block_value& v) { return !capture(v.formula, v.options).n.empty(); }
constexpr bool both_passes_evaluate(const block_value& v) {
  return !block_forward(v).n.empty() && !block_backward(v).n.empty();
}
template <class Block>
concept captures = requires {
  typename constant<block_evaluates(value_of<Block>())>;
};
template <class Block>
concept derives = requires {
  typename constant<both_passes_evaluate(value_of<Block>())>;
};
// Replaces a block that has no graphs, so that no further errors follow the one message.
struct nothing {
  static constexpr const char* name = "nothing";
  static constexpr ex run(block_scope, ex h) { return h; }
};

template <class Block> struct block_checks {
  static constexpr graph g = derived_block<Block>::written;
  static constexpr size_values sizes = block_sizes<Block>(g);
  static constexpr const requirement* violated = first_violated(g, sizes);
};
template <class Block> struct block_size_mistake {
  using check = block_checks<Block>;
  static constexpr requirement r = *check::violated;
  static constexpr long long lhs = check::g.sizes.value(r.lhs, check::sizes);
  static constexpr long long rhs = check::g.sizes.value(r.rhs, check::sizes);
  static constexpr text where = located(check::g, r);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> struct block_fault {
  static constexpr failure bad = block_checks<Block>::g.bad;
  static constexpr text where = bad.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> struct block_break {
  static constexpr graph g = derived_block<Block>::forward;
  static constexpr plan_facts facts = plan_of<Block>::facts;
  static constexpr text where = located(g, facts.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
// The first operation that a target has no kernel for.
template <class Block, const target& To> struct block_without_kernel {
  static constexpr graph g = derived_block<Block>::forward;
  static constexpr plan_facts facts = plan_of<Block, To>::facts;
  static constexpr text where = located(g, facts.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> struct block_no_gradient {
  static constexpr failure at = grad(canonical(capture(value_of<Block>().formula, value_of<Block>().options))).bad;
  static constexpr text where = located(block_checks<Block>::g, at.at);
  using words = decltype(diagnostic::quoted<where>());
};

template <class Block> constexpr auto block_size_verdict() {
  using m = block_size_mistake<Block>;
  using enum requirement::kind;
  using namespace diagnostic;
  if constexpr (m::r.what == inner)
    return type_is<inner_sizes_differ<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == same)
    return type_is<sizes_differ<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == square)
    return type_is<matrix_is_not_square<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == at_most)
    return type_is<size_is_too_large<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else
    return type_is<size_is_not_divisible<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
}
template <class Block> constexpr auto block_fault_verdict() {
  using m = block_fault<Block>;
  if constexpr (m::bad.what == formula_error::too_many_sizes)
    return type_is<diagnostic::formula_has_too_many_sizes<nothing, Block, max_names>>{};
  else if constexpr (m::bad.what == formula_error::name_is_taken)
    return type_is<diagnostic::name_is_taken<nothing, Block, typename m::words, m::bad.line>>{};
  else if constexpr (m::bad.what == formula_error::not_on_experts)
    return type_is<diagnostic::not_on_experts<nothing, Block, typename m::words, m::bad.line>>{};
  else
    return type_is<diagnostic::size_is_not_positive<nothing, Block, typename m::words, m::bad.line, m::bad.number>>{};
}

template <class Block, class... Options> constexpr auto block_verdict() {
  constexpr bool requires_fullgraph = has_option<fullgraph, Options...>,
                 requires_training = has_option<training, Options...>, one = has_option<one_kernel, Options...>;
  if constexpr (!captures<Block>) {
    return type_is<diagnostic::not_a_block<nothing, Block>>{};
  } else if constexpr (block_checks<Block>::g.bad.what != formula_error::none) {
    return block_fault_verdict<Block>();
  } else if constexpr (!derives<Block>) {
    return type_is<diagnostic::formula_is_too_large<nothing, Block>>{};
  } else if constexpr (block_checks<Block>::violated != nullptr) {
    return block_size_verdict<Block>();
  } else if constexpr (requires_fullgraph && plan_of<Block>::graph_breaks > 0) {
    using m = block_break<Block>;
    return type_is<diagnostic::host_function_breaks_the_graph<Block, Block, typename m::words,
                                                              m::g[m::facts.first_break].line, m::facts.breaks>>{};
  } else if constexpr (requires_fullgraph && plan_of<Block, chosen<Options...>::to>::graph_breaks > 0) {
    using m = block_without_kernel<Block, chosen<Options...>::to>;
    return type_is<diagnostic::no_kernel_on_this_target<Block, Block, typename m::words,
                                                        m::g[m::facts.first_break].line, m::facts.breaks>>{};
  } else if constexpr (requires_training &&
                       derived_block<Block>::backward.bad.what == formula_error::not_differentiable) {
    using m = block_no_gradient<Block>;
    return type_is<diagnostic::not_differentiable<Block, Block, typename m::words, m::at.line>>{};
  } else if constexpr (one && plan_of<Block, chosen<Options...>::to>::kernels != 1) {
    using planned = plan_of<Block, chosen<Options...>::to>;
    using m = several_kernels<planned>;
    return type_is<diagnostic::more_than_one_kernel<Block, Block, typename m::words, planned::kernels>>{};
  } else {
    return type_is<plan_of<Block, chosen<Options...>::to>>{};
  }
}

template <block_type Block, class... Options> struct checked_compile<Block, Options...> {
  using verdict = decltype(block_verdict<Block, Options...>());
};

}  // namespace graft::detail
