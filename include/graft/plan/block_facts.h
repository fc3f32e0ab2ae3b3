// SPDX-License-Identifier: Apache-2.0
// Facts of a transformer block type: kernels, graph breaks, flops, bytes, and bytes saved for backward.
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
