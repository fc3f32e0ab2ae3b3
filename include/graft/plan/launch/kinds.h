// SPDX-License-Identifier: Apache-2.0
// The kinds of launches: a closed vocabulary. A kind is one header here: a struct that says what one launch of the kind
// is, and these members, which are all that the rest of plan/ uses (those that a kind has no use for, it leaves out):
//     capabilities       what a target can do of this kind; each backend states it next to its kernels
//     work               what the planner notes of this kind while it plans one graph
//     match(planner)     finds the nodes that launches of this kind take in, and claims them
//     add(planner, k, i) adds match k, which claimed node i, as a launch if all that it reads is computed
//     anchor(), name()   the node that a launch is built around, and its name in explain() and drawings
//     kernels(facts)     how many kernels it takes with given sizes; why_several(facts) says why in words
//     each_wgrad(f)      the wgrads that run in it, by their index in the plan
// Kinds are matched in the order of this list. A kind is added by its header and a line here.
#pragma once
#include <graft/plan/launch/attention.h>
#include <graft/plan/launch/expert_gemm.h>
#include <graft/plan/launch/gemm.h>

namespace graft {

template <class... Kinds> struct kind_list {
  static constexpr int count = sizeof...(Kinds);

  // The index of a kind, which launches store.
  template <class Kind>
  static constexpr int index_of = [] {
    int k = 0, found = -1;
    ((found = std::is_same_v<Kind, Kinds> ? k : found, ++k), ...);
    return found;
  }();
  // Calls f with a null pointer to each kind.
  template <class F> static constexpr void each(F f) { (f(static_cast<Kinds*>(nullptr)), ...); }
  // Calls f for kind k only.
  template <class F> static constexpr void only(int k, F f) {
    ((k == index_of<Kinds> ? f(static_cast<Kinds*>(nullptr)) : void()), ...);
  }
  // One value per kind: For<Kind>.
  template <template <class> class For> struct values : For<Kinds>... {};
};

using launch_kinds = kind_list<dropout_gemm, kronecker_chain, wgrad_launch, gemm_launch, expert_gemm, matrix_stack,
                               rowwise_launch, expression_launch, attention_launch, nodes_launch, rows_launch>;

namespace detail {
template <class Kind> struct capabilities_of { typename Kind::capabilities capabilities{}; };
template <class Kind> struct work_of { typename Kind::work work{}; };
template <class Kind> struct list_of { sequence<Kind> list; };
}  // namespace detail

}  // namespace graft
