// SPDX-License-Identifier: Apache-2.0
// shard: a graph becomes the graph of one of several ranks that share some of its sizes. Every value is whole, or a part of
// an axis, or a summand; how an operation passes that on is in the op table (axes, linearity, in_parts). A base tensor is
// there as this rank's part, everything else of an adapter is whole, being small, and a rank takes its part of it. Where an
// operation needs all of a value, parts are put in their places among zeros and summed over the ranks; a summand travels
// on through whatever is linear in it, and is summed as late as possible. Works for any graph: forward, backward, a block.
#pragma once
#include <graft/derive/shard_blocks.h>
#include <graft/derive/shard_loss.h>

#include <initializer_list>

namespace graft {

struct sharded {
  builder g;
  text why{};  // it cannot be shared so; empty: it can
};

namespace detail {

struct sharder : rank_graph {
  using rank_graph::rank_graph;

  constexpr void leaf(id i) {
    const node& v = from[i];
    const bool brought = v.what == op::base || v.what == op::input || v.what == op::state;
    int axis = -1, several = 0;
    for (int k = 0; k < 4; ++k)
      if (share_of(from, among, v.d[k]) != share::all) axis = k, ++several;
    const bool shared = several == 1 && share_of(from, among, v.d[axis]) == share::part && divides(i, axis, 1) &&
                        is_named(v.what) && row(v.what).from != source::integers;
    free[i] = !(brought && shared);
    if (brought && shared) {
      emit(i, {kind::part, axis}, copied(i));
      return;
    }
    emit(i, {}, copied(i));
    if (!shared) return;
    whole_at[i] = at[i];
    at[i] = to_part(i, axis, 1), where[i] = {kind::part, axis};
  }
  constexpr bool passes(id i, int k) {  // the part that operand k is, to a part or a summand
    const node& v = from[i];
    const op_row& of = row(v.what);
    const placement p = where[v.operand(k)];
    if (of.kind == op_class::attention) return p.what == kind::side_by_side && part_by_heads(*this, i);
    if (p.what == kind::side_by_side) return part_cut_out(*this, i);
    if (of.axes == flow::regroup) return regrouped_part(*this, i);
    if (of.axes == flow::along && of.arity == 2 && v.k[0].v == p.axis) return parts_beside(*this, i);
    if (of.axes == flow::look_up) return k == 0 && part_looked_up(*this, i);
    if (of.axes == flow::add_places) return false;  // the places are those of all numbers
    if (of.axes == flow::labelled)
      return k == 0 && (of.cut == in_parts::summands ? shared_loss(*this, i) : shared_loss_grad(*this, i));
    const bool adds = of.cut == in_parts::sums && p.axis == 3;
    if (of.cut != in_parts::no && p.axis == 3 && !adds) return part_in_blocks(*this, i, k);
    const int after = adds ? is_summed : axis_after(from, v, k, p.axis);
    if (after == mixes) return false;
    return take(i, k, p, after == is_summed ? placement{kind::summand} : placement{kind::part, after, p.before});
  }
  // Summands that travel on, in the operands that the operation is linear in.
  constexpr bool stays_summand(id i) {
    const node& v = from[i];
    const linearity sums = row(v.what).sums;
    int summands = 0, wholes = 0;
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      summands += where[o].what == kind::summand ? 1 : 0, wholes += where[o].what == kind::whole ? 1 : 0;
      if (where[o].what == kind::part || where[o].what == kind::side_by_side) return false;
    }
    if (summands == 0 || sums == linearity::no) return false;
    if (sums == linearity::in_all && wholes > 0) return false;
    if (sums != linearity::in_all && summands > 1) return false;
    if (sums == linearity::in_first && where[v.a].what != kind::summand) return false;
    node made = copied(i);
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0) give(made, k, at[o]);
    emit(i, {kind::summand}, made);
    return true;
  }
  constexpr void visit(id i) {
    const node& v = from[i];
    if (is_leaf(v.what)) return leaf(i);
    free[i] = true;
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0) free[i] = free[i] && free[o];
    if (stays_summand(i)) return;
    for (const bool costly : {true, false})  // what can be had whole for nothing follows the others
      for (int k = 0; k < 3; ++k)
        if (const id o = v.operand(k); o >= 0 && free[o] != costly)
          if ((where[o].what == kind::part || where[o].what == kind::side_by_side) && passes(i, k)) return;
    all_whole(i);
  }
  // Results that callers see: parts where their sizes are shared and nobody asks for all of it; gradients of parameters
  // are whole, as the parameters are.
  constexpr void outputs(bool whole) {
    for (int k = 0; k < from.outs; ++k) {
      const output& o = from.out[k];
      const bool gradient = !o.of_input && !same_text(o.name, "y");
      int axis = -1;
      for (int d = 0; d < 4; ++d)
        if (share_of(from, among, from[o.at].d[d]) == share::part) axis = d;
      const bool part = !whole && !gradient && axis >= 0 && divides(o.at, axis, 1);
      g.give(part ? to_part(o.at, axis, 1) : to_whole(o.at), o.name, tables.path(o.path), o.of_input);
    }
  }
};

}  // namespace detail

// `s`: the sizes of the whole, as far as they are known; rows of a call need not be. `whole`: every rank has all results.
[[gnu::cold]] constexpr sharded shard(const graph& from, const shared_sizes& among, size_values s, long long ranks,
                                      bool whole = false) {
  from.sizes.set_tokens(s, 10007);  // a prime: no axis is mistaken for the rows
  sharded made;
  for (int k = 0; k < from.sizes.count; ++k) {
    const size_entry& e = from.sizes.e[k];
    if (e.index < 0 || !among.has(from, e) || s.v[e.index] == unknown || s.v[e.index] % ranks == 0) continue;
    made.why << e.name << " = " << s.v[e.index] << " cannot be divided among " << ranks
             << " ranks; use a number of ranks that divides it";
    return made;
  }
  detail::sharder of(from, among, s, ranks);
  for (id i = 0; i < from.size; ++i) of.visit(i);
  of.outputs(whole);
  of.g.need.clear();  // those of the whole are checked where the whole is; parts were only made where they fit
  of.g.bad = from.bad, of.g.bad.at = none_id;
  made.g = canonical(of.g);
  return made;
}

}  // namespace graft
