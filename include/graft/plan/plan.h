// SPDX-License-Identifier: Apache-2.0
// launch_plan: the call-stage nodes of a graph as a list of launches for a target. Backends execute exactly this list;
// explain(), drawings, facts, costs and errors read it too.
#pragma once
#include <graft/plan/row_flow.h>
#include <graft/plan/target.h>

namespace graft {

// A launch is a kind (launch/kinds.h) and an index into the plan's list of that kind.
struct launch {
  int kind = 0, index = 0;
  int first = 0, count = 0;  // the launch has nodes [first, first + count) of launch_plan::nodes

  template <class Kind> constexpr bool is() const { return kind == launch_kinds::index_of<Kind>; }
};

struct launch_plan {
  target to{};
  stages when{};
  node_set live{};
  row_flow rows{};
  sequence<launch> launches;
  sequence<id> nodes;  // the nodes of all launches, in order of computation
  launch_kinds::values<detail::list_of> lists;
  sequence<gemm_slots> products;  // of all gemm_launches
  sequence<int> launch_of;        // by node; -1: precomputed, or a leaf
  sequence<launch_slot> slot_of;
  int breaks = 0;  // nodes that no launch can hold
  id first_break = none_id;

  // All launches of a kind, and parts of that kind which run in launches of another one.
  template <class Kind> constexpr const sequence<Kind>& all() const {
    return static_cast<const detail::list_of<Kind>&>(lists).list;
  }
  template <class Kind> constexpr sequence<Kind>& all() { return static_cast<detail::list_of<Kind>&>(lists).list; }
  // The launch as one of this kind; null where it is of another one.
  template <class Kind> constexpr const Kind* as(const launch& l) const {
    return l.is<Kind>() ? &all<Kind>()[l.index] : nullptr;
  }
  // Calls f with the launch as a value of its kind.
  template <class F> constexpr void visit(const launch& l, F f) const {
    launch_kinds::only(l.kind, [&]<class Kind>(Kind*) { f(all<Kind>()[l.index]); });
  }
  // The node that a launch is built around.
  constexpr id anchor_of(const launch& l) const {
    id at = none_id;
    visit(l, [&](const auto& one) { at = one.anchor(); });
    return at;
  }
  constexpr const char* name_of(const graph& g, const launch& l) const {
    const char* name = "";
    visit(l, [&](const auto& one) { name = one.name(g); });
    return name;
  }
  // Calls f with the index of each wgrad that runs in the launch.
  template <class F> constexpr void each_wgrad(const launch& l, F f) const {
    visit(l, [&]<class Kind>(const Kind& one) {
      if constexpr (requires { one.each_wgrad(0, f); }) one.each_wgrad(l.index, f);
    });
  }
};

constexpr bool reads_by_chunk(const graph& g, const launch_plan& p, id i, int k) {
  return detail::read_by_chunk(g, p.rows, i, k);
}
// Returns true for a value that is stored for all rows, because another launch reads it or a reader needs all rows.
constexpr bool crosses_launches(const graph& g, const launch_plan& p, id i) {
  for (id r = i + 1; r < g.size; ++r)
    for (int k = 0; p.live[r] && k < 3; ++k)
      if (g[r].operand(k) == i)
        if (p.launch_of[r] != p.launch_of[i] ||
            (p.launches[p.launch_of[i]].is<rows_launch>() && !reads_by_chunk(g, p, r, k)))
          return true;
  return false;
}

}  // namespace graft
