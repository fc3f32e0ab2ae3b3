// SPDX-License-Identifier: Apache-2.0
// fuse: a graph becomes a plan. How nodes are gathered is the target's: by rows (the CPU: a round of rows.h is one
// launch), by products (a GPU: fuse_products.h, which only a program compiles that has such a target), or not at all
// (eager).
#pragma once
#include <graft/derive/apply.h>
#include <graft/plan/plan.h>

namespace graft {

constexpr family family_of(const node& v) {
  switch (row(v.what).kind) {
    case op_class::product: return family::product;
    case op_class::lookup: return adds_up(v.what) ? family::reduce : family::lookup;
    case op_class::rotation: return adds_up(v.what) ? family::reduce : family::rotate;
    case op_class::rowwise: return family::rowwise;
    case op_class::attention: return family::attention;
    case op_class::reduction: return family::reduce;
    case op_class::pointwise:
    case op_class::layout: return family::pointwise;
    case op_class::leaf:
    case op_class::algebra: return family::small;
    case op_class::exchange: return family::exchange;
    case op_class::opaque: return family::host;
  }
  return family::small;
}

namespace detail {

struct planner {
  const graph& g;
  plan& p;

  constexpr bool member(id i) const { return p.live[i] && p.when.of[i] == stage::data && !is_leaf(g[i].what); }
  constexpr void open(family what, id anchor, bool by_rows = false) {
    p.launches.push({what, anchor, by_rows, p.nodes.size()});
  }
  // `owns`: not for a node that another launch computes as well, and stores or computes first.
  constexpr void add(id i, slot where, bool owns = true) {
    if (owns) p.launch_of[i] = p.launches.size() - 1;
    p.place[i] = where;
    p.nodes.push(i);
    ++p.launches.back().count;
  }

  // ---- by rows; a reshaped whole is the same memory: nothing to launch
  // A product with the base weight, a look-up or a norm: what a launch is built around.
  constexpr bool is_anchor(id i) const {
    const node& v = g[i];
    if (p.rows.how[i] != reach::piece) return false;
    if (row(v.what).kind == op_class::rowwise || row(v.what).axes == flow::look_up) return true;
    if (v.what != op::matmul || p.when.of[v.b] == stage::data) return false;
    const long long base = base_count(g, v.b);
    return base > 0 && 4 * nominal_count(g, v.b) > base;
  }
  [[gnu::cold]] constexpr void gather_rows() {
    p.rows = flow_of_rows(g, p.when, p.live);
    for (int round = 0; round < p.rows.rounds; ++round) {
      bool opened = false;
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.how[i] == reach::whole && g[i].what != op::reshape) {
          const family what = family_of(g[i]);
          const bool alone = what == family::host || what == family::exchange;
          if (!opened || alone) open(alone || what == family::attention ? what : family::small, i);
          opened = !alone;
          add(i, slot::alone);
        }
      id anchor = none_id, first = none_id;
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.how[i] != reach::whole) {
          if (first < 0) first = i;
          const bool better = anchor < 0 || (g[i].what == op::matmul && g[anchor].what != op::matmul);
          if (is_anchor(i) && better) anchor = i;
        }
      if (first < 0) continue;
      const id at = anchor >= 0 ? anchor : first;
      open(family_of(g[at]), at, true);
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.how[i] != reach::whole)
          add(i, p.rows.how[i] == reach::sum ? slot::reduce : i == anchor ? slot::product : slot::side);
      place_around(p.launches.size() - 1, anchor);
    }
  }
  // What follows from the anchor is post, what it follows from is pre; the rest stands beside it.
  [[gnu::cold]] constexpr void place_around(int launch, id anchor) {
    for (id i = 0; i < g.size; ++i) {
      if (p.launch_of[i] != launch || p.place[i] != slot::side) continue;
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && p.launch_of[o] == launch)
          if (p.place[o] == slot::product || p.place[o] == slot::post) p.place[i] = slot::post;
      if (anchor < 0) p.place[i] = slot::post;
    }
    if (anchor < 0) return;
    node_set before(g.size);
    before.add(anchor);
    for (id i = anchor; i >= 0; --i)
      for (int k = 0; before[i] && k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && p.launch_of[o] == launch && p.place[o] != slot::reduce)
          before.add(o), p.place[o] = slot::pre;
  }

  // ---- each node on its own
  [[gnu::cold]] constexpr void whole_nodes() {
    p.rows = {sequence<reach>(g.size, reach::none), sequence<int>(g.size, -1), sequence<int>(g.size, 0)};
    for (id i = 0; i < g.size; ++i)
      if (member(i)) p.rows.how[i] = reach::whole;
  }
  [[gnu::cold]] constexpr void gather_nodes() {
    whole_nodes();
    for (id i = 0; i < g.size; ++i)
      if (member(i) && g[i].what != op::reshape) open(family_of(g[i]), i), add(i, slot::alone);
  }
};

}  // namespace detail

[[gnu::cold]] constexpr plan fuse(const graph& g, const target& to = cpu_target) {
  plan p;
  detail::planner m{g, p};
  p.to = to;
  p.when = schedule(g);
  p.live = reachable(g);
  p.launch_of = sequence<int>(g.size, -1);
  p.place = sequence<slot>(g.size, slot::none);
  for (id i = 0; i < g.size; ++i)
    if (p.live[i] && to.breaks_at(g[i].what)) {
      ++p.breaks;
      if (p.first_break < 0) p.first_break = i;
    }
  if (to.gathers == target::work::by_rows)
    m.gather_rows();
  else if (to.gather_products != nullptr)  // a GPU that is told to run by nodes keeps its products with dropout
    to.gather_products(m);
  else
    m.gather_nodes();
  return p;
}

}  // namespace graft
