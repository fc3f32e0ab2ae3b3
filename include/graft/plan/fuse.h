// SPDX-License-Identifier: Apache-2.0
// fuse: plans a graph as a list of launches for a target. target::granularity selects how nodes are grouped: by rows
// (the CPU; each round of plan/row_flow.h is one launch), by products (a GPU; plan/fuse_products.h, which only programs
// with such a target compile), or one launch per node (eager).
#pragma once
#include <graft/derive/apply.h>
#include <graft/plan/plan.h>

namespace graft {

namespace detail {

struct planner {
  const graph& g;
  launch_plan& p;

  constexpr bool member(id i) const { return p.live[i] && p.when.of[i] == stage::call && !is_leaf(g[i].what); }
  // Opens launch `index` of a kind, to which the next nodes are added.
  template <class Kind> constexpr void open(int index) {
    p.launches.push({launch_kinds::index_of<Kind>, index, p.nodes.size()});
  }
  template <class Kind> constexpr void open(const Kind& one) {
    open<Kind>(p.all<Kind>().size());
    p.all<Kind>().push(one);
  }
  // `owns` is false for a node that this launch recomputes but another launch stores.
  constexpr void add(id i, launch_slot where, bool owns = true) {
    if (owns) p.launch_of[i] = p.launches.size() - 1;
    p.slot_of[i] = where;
    p.nodes.push(i);
    ++p.launches.back().count;
  }

  // ---- by rows
  // True for the node that a launch is built around: a product with the base weight, a look-up or a norm.
  constexpr bool is_anchor(id i) const {
    const node& v = g[i];
    if (p.rows.dependence_of[i] != row_dependence::chunk) return false;
    if (traits_of(v.what).kind == op_class::rowwise || traits_of(v.what).axes == axis_flow::gather) return true;
    if (v.what != op::matmul || p.when.of[v.b] == stage::call) return false;
    const long long base = base_count(g, v.b);
    return base > 0 && 4 * nominal_count(g, v.b) > base;
  }
  [[gnu::cold]] constexpr void fuse_rows() {
    p.rows = find_row_flow(g, p.when, p.live);
    for (int round = 0; round < p.rows.rounds; ++round) {
      bool opened = false;
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.dependence_of[i] == row_dependence::whole &&
            g[i].what != op::reshape) {
          const bool standalone = nodes_launch::stands_alone(traits_of(g[i].what).kind);
          if (!opened || standalone) open(nodes_launch{i, true});
          opened = !standalone;
          add(i, launch_slot::standalone);
        }
      id anchor = none_id, first = none_id;
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.dependence_of[i] != row_dependence::whole) {
          if (first < 0) first = i;
          const bool better = anchor < 0 || (g[i].what == op::matmul && g[anchor].what != op::matmul);
          if (is_anchor(i) && better) anchor = i;
        }
      if (first < 0) continue;
      const id at = anchor >= 0 ? anchor : first;
      open(rows_launch{at});
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.dependence_of[i] != row_dependence::whole)
          add(i, p.rows.dependence_of[i] == row_dependence::sum ? launch_slot::reduce
                 : i == anchor                                  ? launch_slot::mainloop
                                                                : launch_slot::branch);
      assign_slots(p.launches.size() - 1, anchor);
    }
  }
  // Nodes that depend on the anchor become epilogue, nodes that it depends on prologue; all others stay branches.
  [[gnu::cold]] constexpr void assign_slots(int launch, id anchor) {
    for (id i = 0; i < g.size; ++i) {
      if (p.launch_of[i] != launch || p.slot_of[i] != launch_slot::branch) continue;
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && p.launch_of[o] == launch)
          if (p.slot_of[o] == launch_slot::mainloop || p.slot_of[o] == launch_slot::epilogue)
            p.slot_of[i] = launch_slot::epilogue;
      if (anchor < 0) p.slot_of[i] = launch_slot::epilogue;
    }
    if (anchor < 0) return;
    node_set before(g.size);
    before.add(anchor);
    for (id i = anchor; i >= 0; --i)
      for (int k = 0; before[i] && k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && p.launch_of[o] == launch && p.slot_of[o] != launch_slot::reduce)
          before.add(o), p.slot_of[o] = launch_slot::prologue;
  }

  // ---- one launch per node
  [[gnu::cold]] constexpr void mark_nodes_whole() {
    p.rows = {sequence<row_dependence>(g.size, row_dependence::none), sequence<int>(g.size, -1),
              sequence<int>(g.size, 0)};
    for (id i = 0; i < g.size; ++i)
      if (member(i)) p.rows.dependence_of[i] = row_dependence::whole;
  }
  [[gnu::cold]] constexpr void launch_each_node() {
    mark_nodes_whole();
    for (id i = 0; i < g.size; ++i)
      if (member(i) && g[i].what != op::reshape) open(nodes_launch{i}), add(i, launch_slot::standalone);
  }
};

}  // namespace detail

[[gnu::cold]] constexpr launch_plan fuse(const graph& g, const target& to = cpu_target) {
  launch_plan p;
  detail::planner m{g, p};
  p.to = to;
  p.when = schedule(g);
  p.live = reachable(g);
  p.launch_of = sequence<int>(g.size, -1);
  p.slot_of = sequence<launch_slot>(g.size, launch_slot::none);
  for (id i = 0; i < g.size; ++i)
    if (p.live[i] && to.is_graph_break(g[i].what)) {
      ++p.breaks;
      if (p.first_break < 0) p.first_break = i;
    }
  if (to.granularity == target::work::by_rows)
    m.fuse_rows();
  else if (to.fuse_products)  // by_nodes: it still plans the kinds that are matched by nodes
    to.fuse_products(m);
  else
    m.launch_each_node();
  return p;
}

}  // namespace graft
