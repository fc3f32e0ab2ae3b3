// SPDX-License-Identifier: Apache-2.0
// A transformer block type: its facts, compile<Block, Options…>, and explain(). The facts are kernels, graph breaks,
// flops, bytes, and bytes saved for backward.
//     struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>> {};
//     static_assert(compile<tuned, fullgraph, training>::kernels == 3);
// The facts are those of a block on its own; in a model its first norm may be fused into the previous block
// (plan/launch/gemm.h). A block type may state sizes of the model, its element type and facts of its
// configuration:
//     static constexpr named_size sizes[] = {{"hidden", 4096}, {"heads", 32}};      using element = bf16;
// Costs assume nominal numbers for the sizes that it leaves open.
#pragma once
#include <graft/derive/block.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/compile.h>
#include <graft/plan/explain.h>
#include <graft/plan/facts.h>

namespace graft {

template <class T>
concept block_type = requires(block_scope m, ex h) {
  {T::run(m, h)};
};

// A block formula with its adapters and configuration facts, as a value.
struct block_value {
  block_formula formula{};
  block_options options{};
};
template <class T, std::size_t N> constexpr int entries(const T (&)[N]) { return static_cast<int>(N); }
template <class Block> constexpr block_value value_of() {
  block_value v{block_of<Block>(), {}};
  if constexpr (requires { Block::adapters; }) v.options.adapters = Block::adapters;
  if constexpr (requires { Block::facts; }) {
    v.options.facts = Block::facts;
    v.options.fact_count = entries(Block::facts);
  }
  return v;
}

namespace detail {
constexpr builder block_written(const block_value& v) { return canonical(capture(v.formula, v.options)); }
constexpr builder block_forward(const block_value& v) { return capture_forward(v.formula, v.options); }
constexpr builder block_backward(const block_value& v) { return capture_backward(v.formula, v.options); }

template <builder (*Function)(const block_value&), class Block> struct captured_block {
  static constexpr graph_counts n = counts_of(Function(Block::value));
  static constexpr auto stored = store_graph<n.nodes, n.sizes, n.paths, n.needs, n.outs>(Function(Block::value));
};

template <class Block> struct block_element { using type = float; };
template <class Block>
requires requires { typename Block::element; }
struct block_element<Block> {
  using type = typename Block::element;
};
}  // namespace detail

template <class Block> struct derived_block {
  static constexpr block_value value = value_of<Block>();
  static constexpr graph written = detail::captured_block<detail::block_written, derived_block>::stored;
  static constexpr graph forward = detail::captured_block<detail::block_forward, derived_block>::stored;
  static constexpr graph backward = detail::captured_block<detail::block_backward, derived_block>::stored;
};

// The sizes that the type states, and the sizes of adapters that follow from them.
template <class Block> constexpr size_values block_sizes(const graph& g) {
  size_values s;
  if constexpr (requires { Block::sizes; })
    for (const named_size& n : Block::sizes)
      if (const int index = g.sizes.find(n.name); index >= 0 && n.value != dyn) s.v[index] = n.value;
  infer_adapter_sizes(g, derived_block<Block>::value.options.adapters, s);
  return s;
}
template <class Block> constexpr size_values block_sizes_at(const graph& g, long long tokens) {
  size_values s = with_nominals(g, block_sizes<Block>(g));
  g.sizes.set_tokens(s, tokens);
  return s;
}

template <block_type Block, const target& To> struct plan_of<Block, To> {
  using layer = Block;
  using element = typename detail::block_element<Block>::type;
  using d = derived_block<Block>;
  static constexpr const target& runs_on = To;
  static constexpr detail::plan_facts facts = detail::facts_of(d::forward, To);
  static constexpr graph forward_graph() { return d::forward; }
  static constexpr int kernels_at(long long tokens) {
    return kernel_count(d::forward, fuse(d::forward, To), block_sizes_at<Block>(d::forward, tokens),
                        storage<element>::type);
  }
  static constexpr int kernels = facts.launches;
  // Explains in words, for messages, what each launch of a forward call computes and why it takes several kernels.
  static constexpr text why_several_kernels(long long tokens = 4096) {
    return graft::why_several_kernels(d::forward, fuse(d::forward, To), block_sizes_at<Block>(d::forward, tokens),
                                      storage<element>::type, {});
  }
  static constexpr int graph_breaks = facts.breaks;
  static constexpr unsigned long long key = facts.key;
  static constexpr cost forward_cost(long long tokens) { return price(d::forward, tokens); }
  static constexpr cost backward_cost(long long tokens) { return price(d::backward, tokens); }
  static constexpr long long flops(long long tokens) { return forward_cost(tokens).flops; }
  static constexpr long long bytes(long long tokens) { return forward_cost(tokens).bytes; }
  // Bytes that a training step saves for backward, without the block's input x.
  static constexpr long long saved_bytes(long long tokens) {
    const saved_pair pair = select_saved_tensors(d::forward, d::backward);
    const graph g = pair.forward;
    const size_values s = block_sizes_at<Block>(g, tokens);
    long long elements = 0;
    for (int k = d::forward.outs; k < g.outs; ++k) elements += element_count(g, g.out[k].at, s);
    return elements * bits_of(computed) / 8;
  }

 private:
  static constexpr dtype computed = storage<typename storage<element>::compute>::type;
  static constexpr cost price(const graph& g, long long tokens) {
    return cost_of(g, block_sizes_at<Block>(g, tokens), quant_format_of<element>(), computed);
  }
};

}  // namespace graft

// ---- compile

// compile<Block, Options…>: the facts of a transformer block type, or the one diagnostic that says what is wrong with
// it. Diagnostics are those of layers (plan/compile.h). They name the path of the layer, the line of the block's
// formula and the sizes, and list the block in place of the layer and of the adapter.

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

// ---- explain

// explain() of a transformer block type: the launches of forward and backward, with the paths of its layers.

namespace graft::detail {

template <block_type Block, const target& To> struct explained<Block, To> {
  template <class Sink> static constexpr void write(Sink&& line, long long tokens) {
    using facts = plan_of<Block, To>;
    constexpr dtype stored = storage<typename facts::element>::type;
    const bool priced = tokens != dyn;
    text head;
    head << Block::name << " block " << name_of(stored);
    if (priced) {
      head << ", " << tokens << " tokens, ";
      print_si(head, facts::saved_bytes(tokens)), head << "B saved for backward";
    }
    line(head);
    auto pass = [&](const graph& g, const char* title, const cost& price) {
      const launch_plan p = fuse(g, To);
      size_values s = with_nominals(g, block_sizes<Block>(g));
      if (priced) g.sizes.set_tokens(s, tokens);
      explain_graph(g, p, title, kernel_count(g, p, s, stored), priced ? &price : nullptr, line);
    };
    pass(facts::d::forward, "forward", priced ? facts::forward_cost(tokens) : cost{});
    pass(facts::d::backward, "backward", priced ? facts::backward_cost(tokens) : cost{});
  }
};

}  // namespace graft::detail
