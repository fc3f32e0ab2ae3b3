// SPDX-License-Identifier: Apache-2.0
// plan_of: the facts of a layer type that a user can assert: kernels, graph breaks, folding, merging. Plans contain no
// sizes, so that all layers of a kind with one adapter share them; whether the adapter is folded depends on the sizes.
#pragma once
#include <graft/derive/layers.h>
#include <graft/plan/fingerprint.h>
#include <graft/plan/kernel_reason.h>

namespace graft {

namespace detail {
template <class Element> struct element_traits {  // any other type raises not_an_element_type
  using type = float;
  static constexpr dtype stored = dtype::f32;
  static constexpr quant_format format{};
};
template <class Element>
requires requires { storage<Element>::type; }
struct element_traits<Element> {
  using type = typename storage<Element>::compute;
  static constexpr quant_format format = quant_format_of<Element>();
  static constexpr dtype stored =
      format.plain() ? storage<Element>::type : dtype::bf16;  // the type that GEMMs read dequantized values as
};

// The facts of one graph's plan, which are evaluated without storing the plan.
struct plan_facts {
  int launches = 0, breaks = 0;
  id first_break = none_id;
  unsigned long long key = 0;
};
constexpr plan_facts facts_of(const graph& g, const target& to) {
  const launch_plan p = fuse(g, to);
  return {p.launches.size(), p.breaks, p.first_break, fingerprint_of(g, p).key};
}
// Layers of one kind with one adapter share these.
template <class Derived, const target& To> struct plans {
  static constexpr plan_facts forward = facts_of(Derived::forward, To);
  static constexpr plan_facts folded = facts_of(Derived::folded, To);
  static constexpr plan_facts backward = facts_of(Derived::backward, To);
};
}  // namespace detail

template <class Layer, const target& To> struct plan_of {
  using layer = Layer;
  using real = typename detail::element_traits<typename Layer::element>::type;
  using d = derived_of<Layer>;
  static constexpr const target& runs_on = To;
  // The base weight is quantized and stays so.
  static constexpr bool is_quantized = !detail::element_traits<typename Layer::element>::format.plain();
  // True where folding the adapter into a copy of the weight would be cheaper than a low-rank branch. It says nothing
  // about quantized weights, which have no such copy.
  static constexpr bool prefers_folding = folds(To, d::forward, d::folded, static_sizes<Layer>(d::forward),
                                                detail::element_traits<typename Layer::element>::stored);
  // Whether a forward call multiplies with a copy of the weight into which the adapter is folded, recomputed after each
  // change of the parameters, instead of running a low-rank branch. Training never folds this way.
  //     static_assert(!compile<q_proj, for_target<sm_90>>::folded);
  static constexpr bool folded = prefers_folding && !is_quantized;
  // Bytes of that copy: 0 where there is none, `unknown` where the layer type leaves a size of the weight open. A CPU
  // stores it in its compute type, a GPU in the storage type of the weight.
  static constexpr long long folded_bytes = [] {
    if (!folded) return 0LL;
    constexpr dtype stored =
        To.is_cpu() ? storage<real>::type : detail::element_traits<typename Layer::element>::stored;
    const graph& g = d::folded;
    const size_values s = static_sizes<Layer>(g);
    for (id i = 0; i < g.size; ++i)
      if (g[i].what == op::base && same_text(g[i].name, "weight")) {
        for (const dim size : g[i].d)
          if (g.sizes.value(size, s) == unknown) return static_cast<long long>(unknown);
        return element_count(g, i, s) * bits_of(stored) / 8;
      }
    return static_cast<long long>(unknown);
  }();
  static constexpr graph forward_graph() { return folded ? d::folded : d::forward; }
  // Kernels of one forward call with this many tokens; 0 means the nominal number.
  static constexpr int kernels_at(long long tokens) {
    if (!To.can<gemm_launch>().kernels && !To.can<nodes_launch>().kernels)  // every launch is one kernel
      return folded ? detail::plans<d, To>::folded.launches : detail::plans<d, To>::forward.launches;
    const graph& g = folded ? d::folded : d::forward;
    using numbers = detail::element_traits<typename Layer::element>;
    return kernel_count(g, fuse(g, To), sizes_of_call(tokens), numbers::stored,
                        is_quantized ? numbers::format : quant_format{});
  }
  // Explains in words, for messages, what each launch of a forward call computes and why it takes several kernels.
  static constexpr text why_several_kernels(long long tokens = 0) {
    const graph& g = folded ? d::folded : d::forward;
    using numbers = detail::element_traits<typename Layer::element>;
    return graft::why_several_kernels(g, fuse(g, To), sizes_of_call(tokens), numbers::stored,
                                      is_quantized ? numbers::format : quant_format{});
  }
  static constexpr int kernels = kernels_at(0);
  static constexpr int graph_breaks = detail::plans<d, To>::forward.breaks;
  static constexpr unsigned long long key =
      folded ? detail::plans<d, To>::folded.key : detail::plans<d, To>::forward.key;
  // Merging evaluates W'. Unmerging needs W' alone where W occurs once in the formula; where it also occurs in a small
  // factor (DoRA's norm), the merge saves `saved_for_unmerge` tensors for the unmerge.
  static constexpr bool mergeable = d::merge.bad.what == formula_error::none;
  static constexpr bool unmergeable = d::unmerging.weight && d::unmerging.saved == 0;
  static constexpr int saved_for_unmerge = d::unmerging.saved;

 private:
  static constexpr size_values sizes_of_call(long long tokens) {
    const graph& g = folded ? d::folded : d::forward;
    size_values s = with_nominals(g, static_sizes<Layer>(g));
    if (tokens > 0) g.sizes.set_tokens(s, tokens);
    return s;
  }
};

}  // namespace graft
