// SPDX-License-Identifier: Apache-2.0
// What is known of a layer once its type is named: the plan and the facts a user can assert. Plans hold no sizes, so
// all layers of a kind with one adapter share them.
#pragma once
#include <graft/derive/cost.h>
#include <graft/derive/layers.h>
#include <graft/plan/program.h>

namespace graft {

template <class Derived> struct plans {
  static constexpr plan forward = fuse(Derived::forward);
  static constexpr unsigned long long key = encode(Derived::forward, forward).key;
  static constexpr cost_basis forward_basis = basis_of(Derived::forward), folded_basis = basis_of(Derived::folded),
                              backward_basis = basis_of(Derived::backward);
};

namespace detail {
template <class Element> struct real_of { using type = float; };  // what is no element type is an error of its own
template <class Element>
requires requires { storage<Element>::type; }
struct real_of<Element> {
  using type = typename storage<Element>::compute;
};
}  // namespace detail

// What a user can assert of a layer.
template <class Layer> struct plan_of {
  using layer = Layer;
  using real = typename detail::real_of<typename Layer::element>::type;
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

}  // namespace graft
