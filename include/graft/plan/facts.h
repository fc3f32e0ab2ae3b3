// SPDX-License-Identifier: Apache-2.0
// What is known of a layer once its type is named: what a user can assert. Plans hold no sizes, so all layers of a kind
// with one adapter share them; whether the adapter is folded into the weight depends on the sizes of the layer.
#pragma once
#include <graft/derive/layers.h>
#include <graft/plan/code.h>
#include <graft/plan/kernels.h>

namespace graft {

namespace detail {
template <class Element> struct real_of {  // what is no element type is an error of its own
  using type = float;
  static constexpr dtype stored = dtype::f32;
  static constexpr encoding how{};
};
template <class Element>
requires requires { storage<Element>::type; }
struct real_of<Element> {
  using type = typename storage<Element>::compute;
  static constexpr encoding how = encoding_of<Element>();
  static constexpr dtype stored = how.plain() ? storage<Element>::type : dtype::bf16;  // or as products read it
};

// The facts of one graph's plan, without the plan itself.
struct plan_facts {
  int launches = 0, breaks = 0;
  id first_break = none_id;
  unsigned long long key = 0;
};
constexpr plan_facts facts_of(const graph& g, const target& to) {
  const plan p = fuse(g, to);
  return {p.launches.size(), p.breaks, p.first_break, encode(g, p).key};
}
// Shared by all layers of a kind with one adapter.
template <class Derived, const target& To> struct plans {
  static constexpr plan_facts forward = facts_of(Derived::forward, To);
  static constexpr plan_facts folded = facts_of(Derived::folded, To);
  static constexpr plan_facts backward = facts_of(Derived::backward, To);
};
}  // namespace detail

template <class Layer, const target& To> struct plan_of {
  using layer = Layer;
  using real = typename detail::real_of<typename Layer::element>::type;
  using d = derived_of<Layer>;
  static constexpr const target& runs_on = To;
  // The weight is codes, and stays codes.
  static constexpr bool encoded = !detail::real_of<typename Layer::element>::how.plain();
  // The adapter is cheaper as part of a copy of the weight than as a branch beside it; of codes there is no such copy.
  static constexpr bool worth_a_copy = folds(To, d::forward, d::folded, static_sizes<Layer>(d::forward),
                                             detail::real_of<typename Layer::element>::stored);
  static constexpr bool folded = worth_a_copy && !encoded;
  static constexpr graph forward_graph() { return folded ? d::folded : d::forward; }
  // What one forward call launches; a GPU may need more with some numbers of tokens: kernels_at(tokens).
  static constexpr int kernels_at(long long tokens) {
    if (To.product_kernels == nullptr && To.node_kernels == nullptr)  // one kernel a launch, whatever the sizes
      return folded ? detail::plans<d, To>::folded.launches : detail::plans<d, To>::forward.launches;
    const graph& g = folded ? d::folded : d::forward;
    size_values s = with_nominals(g, static_sizes<Layer>(g));
    if (tokens > 0) g.sizes.set_tokens(s, tokens);
    using numbers = detail::real_of<typename Layer::element>;
    return kernels_of(g, fuse(g, To), s, numbers::stored, encoded ? numbers::how : encoding{});
  }
  static constexpr int kernels = kernels_at(0);
  static constexpr int graph_breaks = detail::plans<d, To>::forward.breaks;
  static constexpr unsigned long long key =
      folded ? detail::plans<d, To>::folded.key : detail::plans<d, To>::forward.key;
  // Merging is evaluating W'; unmerging from W' alone is possible where W occurs once in the formula. Where it occurs
  // again in a small factor (DoRA's norm) the merge keeps `kept` tensors for the way back.
  static constexpr bool mergeable = d::merge.bad.what == fault::none;
  static constexpr bool unmergeable = d::unmerging.weight && d::unmerging.kept == 0;
  static constexpr int kept = d::unmerging.kept;
};

}  // namespace graft
