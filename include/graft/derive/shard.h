// SPDX-License-Identifier: Apache-2.0
// shard: a graph becomes the graph of one of several ranks that share some of its sizes. Every value is whole, or a part of
// an axis, or a summand; how an operation passes that on is in the op table (axes, linearity, in_parts). A base tensor is
// there as this rank's part, everything else of an adapter is whole, being small, and a rank takes its part of it. Where an
// operation needs all of a value, parts are put in their places among zeros and summed over the ranks; a summand travels
// on through whatever is linear in it, and is summed as late as possible. Works for any graph: forward, backward, a block.
#pragma once
#include <graft/derive/shard_sizes.h>
#include <graft/derive/walk.h>
#include <graft/graph/axes.h>
#include <graft/graph/canonical.h>
#include <graft/graph/rules_model.h>

#include <initializer_list>

namespace graft {

// Where a value is. A part: the axis is `before` runs, of each of which a rank has one piece. Side by side: the axis is
// several parts behind each other, as queries, keys and values are.
struct placement {
  enum class kind : unsigned char { whole, part, side_by_side, summand };
  kind what = kind::whole;
  int axis = 0;
  long long before = 1;
  friend constexpr bool operator==(const placement&, const placement&) = default;
};

struct sharded {
  builder g;
  text why{};  // it cannot be shared so; empty: it can
};

namespace detail {

struct sharder {
  using kind = placement::kind;
  const graph& from;
  const shared_sizes& among;
  const size_values& s;  // of the whole
  long long ranks;
  builder g{};
  table_copier tables;
  dim ranks_size{}, rank{};
  sequence<placement> where;
  sequence<id> at, whole_at;
  sequence<bool> free;  // can be had whole on every rank without an exchange

  constexpr sharder(const graph& f, const shared_sizes& a, const size_values& v, long long n)
      : from(f),
        among(a),
        s(v),
        ranks(n),
        tables(f, g),
        where(f.size),
        at(f.size, none_id),
        whole_at(f.size, none_id),
        free(f.size, false) {
    ranks_size = g.size_named(ranks_name, 0, 2), rank = g.size_named(rank_name, 0, 1);
  }

  constexpr long long size(id i, int axis) const { return from.sizes.value(from[i].d[axis], s); }
  // A node of the new graph with the operands it had, which are to be given.
  constexpr node copied(id i) {
    node v = from[i];
    for (int k = 0; k < 4; ++k) v.d[k] = tables.size(v.d[k]), v.k[k] = tables.size(v.k[k]);
    v.path = tables.path(v.path), v.a = v.b = v.c = none_id;
    return v;
  }
  static constexpr void give(node& v, int k, id to) { (k == 0 ? v.a : k == 1 ? v.b : v.c) = to; }
  constexpr dim part_of(dim d) { return g.over(d, ranks_size); }
  constexpr bool divides(id i, int axis, long long before) const {
    return before > 0 && size(i, axis) % (before * ranks) == 0;
  }

  // ---- from one placement to another
  // As a matrix whose columns are what is shared: [everything outside of it, the rest].
  constexpr id flat(id value, const node& whole, const placement& p, bool shared) {
    dim outer = dim{static_cast<int>(p.before)}, inner = g.over(whole.d[p.axis], dim{static_cast<int>(p.before)});
    for (int k = 0; k < p.axis; ++k) outer = g.times(outer, whole.d[k]);
    for (int k = p.axis + 1; k < 4; ++k) inner = g.times(inner, whole.d[k]);
    return make::reshape(g, value, {1}, {1}, outer, shared ? part_of(inner) : inner);
  }
  constexpr id to_whole(id i) {
    const placement p = where[i];
    if (p.what == kind::whole) return at[i];
    if (whole_at[i] >= 0) return whole_at[i];
    if (p.what == kind::summand) return whole_at[i] = g.emit(g.shaped(op::rank_sum, at[i], at[i]));
    if (free[i] || p.what == kind::side_by_side) {
      node v = copied(i);
      for (int k = 0; k < 3; ++k)
        if (const id o = from[i].operand(k); o >= 0) give(v, k, to_whole(o));
      return whole_at[i] = g.emit(v);
    }
    const node whole = copied(i);
    const id mine = flat(at[i], whole, p, true);
    node v = g.shaped(op::pad, mine, mine);
    const dim width = v.d[3];
    v.k[0] = {3}, v.k[1] = g.times(width, rank), v.d[3] = g.times(width, ranks_size);
    const id padded = g.emit(v), all = g.emit(g.shaped(op::rank_sum, padded, padded));
    return whole_at[i] = make::reshape(g, all, whole.d[0], whole.d[1], whole.d[2], whole.d[3]);
  }
  constexpr id to_part(id i, int axis, long long before) {
    if (where[i] == placement{kind::part, axis, before}) return at[i];
    if (size(i, axis) == 1) return to_whole(i);
    node whole = copied(i);
    const id all = to_whole(i), rows = flat(all, whole, {kind::part, axis, before}, false);
    const dim width = part_of(g.n[rows].d[3]);
    whole.d[axis] = part_of(whole.d[axis]);
    const id mine = make::slice(g, rows, 3, g.times(width, rank), width);
    return make::reshape(g, mine, whole.d[0], whole.d[1], whole.d[2], whole.d[3]);
  }

  // ---- nodes
  constexpr id emit(id i, const placement& as, node v) {
    if (as.what == kind::part || as.what == kind::side_by_side) v.d[as.axis] = part_of(v.d[as.axis]);
    where[i] = as;
    return at[i] = g.emit(v);
  }
  constexpr void all_whole(id i) {
    node v = copied(i);
    for (int k = 0; k < 3; ++k)
      if (const id o = from[i].operand(k); o >= 0) give(v, k, to_whole(o));
    emit(i, {}, v);
  }
  constexpr void leaf(id i) {
    const node& v = from[i];
    const bool brought = v.what == op::base || v.what == op::input || v.what == op::state;
    int axis = -1, several = 0;
    for (int k = 0; k < 4; ++k)
      if (share_of(from, among, v.d[k]) != share::all) axis = k, ++several;
    const bool shared = several == 1 && share_of(from, among, v.d[axis]) == share::part && divides(i, axis, 1) &&
                        is_named(v.what) && v.what != op::ids;
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
  // The axis of another operand that runs along with an axis of operand k; -1: it is read whole.
  constexpr int partner(const node& v, int k, int axis, int other) const {
    switch (row(v.what).axes) {
      case flow::each:
      case flow::last:
      case flow::along: return axis;
      case flow::outer: return k != 1 && other != 1 ? axis : -1;
      case flow::matrix: return axis < 2 ? axis : -1;
      case flow::product: {
        if (axis < 2) return axis;
        if (axis_after(from, v, k, axis) != is_summed) return -1;
        const bool transposed = other == 0 ? v.ta : v.tb;
        return (other == 0) != transposed ? 3 : 2;
      }
      case flow::add_blocks: return other < 2 ? axis : -1;
      default: return -1;
    }
  }
  constexpr bool passes(id i, int k) {  // the part that operand k is, to a part or a summand
    const node& v = from[i];
    const id o = v.operand(k);
    const placement p = where[o];
    if (p.what == kind::side_by_side) return row(v.what).kind == op_class::attention ? by_heads(i) : cut_out(i);
    switch (v.what) {
      case op::reshape: return regrouped(i);
      case op::concat:
        if (v.k[0].v == p.axis) return beside(i);
        break;
      case op::gather: return k == 0 && looked_up(i);
      case op::cross_entropy: return k == 0 && loss(i);
      case op::cross_entropy_grad: return k == 0 && loss_grad(i);
      case op::rope:
      case op::rotate:
      case op::rotate_grad:
      case op::fold:
        if (p.axis == 3) return in_blocks(i, k);
        break;
      default: break;
    }
    const bool adds = row(v.what).cut == in_parts::summands && p.axis == 3;
    const int after = adds ? is_summed : axis_after(from, v, k, p.axis);
    if (after == mixes) return false;
    return take(i, k, p, after == is_summed ? placement{kind::summand} : placement{kind::part, after, p.before});
  }
  // Node i with operand k where it is, and the others where they fit to it.
  constexpr bool take(id i, int k, const placement& p, const placement& result) {
    node v = copied(i);
    for (int o = 0; o < 3; ++o) {
      const id x = from[i].operand(o);
      if (x < 0) continue;
      const int along = o == k ? p.axis : partner(from[i], k, p.axis, o);
      give(v, o, along < 0 ? to_whole(x) : to_part(x, along, p.before));
    }
    emit(i, result, v);
    return true;
  }
  // The same elements under other sizes: the axis that begins where the runs do.
  constexpr bool regrouped(id i) {
    const id x = from[i].a;
    const placement p = where[x];
    long long outside = p.before;
    for (int k = 0; k < p.axis; ++k) outside *= size(x, k);
    long long outer = 1;
    for (int k = 0; k < 4; outer *= size(i, k++)) {
      if (outer <= 0 || outside % outer != 0 || !divides(i, k, outside / outer)) continue;
      return take(i, 0, p, {kind::part, k, outside / outer});
    }
    return false;
  }
  // Parts behind each other along the axis that they are parts of.
  constexpr bool beside(id i) {
    const int axis = from[i].k[0].v;
    node v = copied(i);
    for (int k = 0; k < 2; ++k) {
      const id x = from[i].operand(k);
      const bool fits = where[x].what == kind::side_by_side ||
                        (share_of(from, among, from[x].d[axis]) == share::part && divides(x, axis, 1));
      if (!fits) return false;
    }
    for (int k = 0; k < 2; ++k) {
      const id x = from[i].operand(k);
      give(v, k, where[x].what == kind::side_by_side ? at[x] : to_part(x, axis, 1));
    }
    emit(i, {kind::side_by_side, axis}, v);
    return true;
  }
  constexpr bool cut_out(id i) {
    const node& v = from[i];
    const placement p = where[v.a];
    if (v.what != op::slice || v.k[0].v != p.axis || share_of(from, among, v.d[p.axis]) != share::part) return false;
    if (!(v.k[1] == dim{0}) && share_of(from, among, v.k[1]) != share::part) return false;
    node made = copied(i);
    made.a = at[v.a], made.k[1] = made.k[1] == dim{0} ? dim{0} : part_of(made.k[1]);
    const dim d = v.d[p.axis];  // a sum of sizes: still several of them
    const bool several = !d.known() && from.sizes.e[d.entry()].what == size_entry::kind::sum;
    emit(i, {several ? kind::side_by_side : kind::part, p.axis}, made);
    return true;
  }
  constexpr bool by_heads(id i) {
    const node& v = from[i];
    const dim queries = v.what == op::attention_grad ? from[v.c].d[3] : v.d[3];
    if (where[v.a].what != kind::side_by_side || share_of(from, among, queries) != share::part) return false;
    if (from.sizes.value(queries, s) % (ranks * from.sizes.value(v.k[0], s)) != 0) return false;
    node made = copied(i);
    made.a = at[v.a], made.b = to_whole(v.b);
    if (v.c >= 0) made.c = v.what == op::attention_grad ? to_part(v.c, 3, 1) : at[v.c];
    emit(i, {v.what == op::attention_grad ? kind::side_by_side : kind::part, 3}, made);
    return true;
  }
  // Blocks of the last axis: a rotation's, a head's turn, the period of a fold.
  constexpr bool in_blocks(id i, int k) {
    const node& v = from[i];
    const placement p = where[v.operand(k)];
    const id blocks = v.what == op::rotate ? v.b : v.what == op::rotate_grad ? v.c : none_id;
    if (v.operand(k) == blocks || p.before != 1 || (v.what == op::rope && k != 0)) return false;
    const long long width = blocks >= 0 ? size(blocks, 3) : v.what == op::rope ? size(v.b, 3) : size(i, 3);
    if (size(v.operand(k), 3) / ranks % width != 0 || (blocks >= 0 && size(blocks, 0) != 1)) return false;
    node made = copied(i);
    made.a = to_part(v.a, 3, 1);
    if (v.b >= 0)
      made.b = v.what == op::rotate ? to_part(v.b, 1, 1) : v.what == op::rope ? to_whole(v.b) : to_part(v.b, 3, 1);
    if (v.c >= 0) made.c = to_part(v.c, 1, 1);
    if (row(v.what).cut == in_parts::summands || (v.what == op::rotate_grad && size(v.c, 1) == 1))
      return emit(i, {kind::summand}, made), true;
    emit(i, {kind::part, v.what == op::rotate_grad ? 1 : 3}, made);
    return true;
  }
  constexpr bool looked_up(id i) {
    const node& v = from[i];
    const placement p = where[v.a];
    if (free[v.a] || p.before != 1) return false;
    node made = copied(i);
    made.a = at[v.a], made.b = to_whole(v.b);
    if (p.axis != (v.ta ? 3 : 2)) return emit(i, {kind::part, 3}, made), true;
    made.sum = true, made.k[0] = g.times(g.n[at[v.a]].d[p.axis], rank);
    emit(i, {kind::summand}, made);
    return true;
  }
  // log Σ exp z = m + log Σ_ranks exp(z_r - m), of z_r = log Σ exp of a rank's part, and m the largest of them.
  struct part_of_loss {
    id row, own, all;  // of the rank without the label; with it; of all ranks without it
  };
  constexpr part_of_loss loss_parts(id logits, id labels) {
    const id z = at[logits], ids = to_whole(labels);
    auto entropy = [&](dim first) {
      node v = g.shaped(op::cross_entropy, z, z, ids);
      v.d[3] = {1}, v.sum = true, v.k[0] = first;
      return g.emit(v);
    };
    const dim width = g.n[z].d[3];
    const id row = entropy(g.times(width, ranks_size)), own = entropy(g.times(width, rank));
    const id most = g.emit(g.shaped(op::rank_max, row, row));
    const id powers = make::unary(g, op::exp, make::sub(g, row, most));
    const id all = make::add(g, most, make::unary(g, op::log, g.emit(g.shaped(op::rank_sum, powers, powers))));
    return {row, own, all};
  }
  constexpr bool loss(id i) {
    const node& v = from[i];
    if (where[v.a].axis != 3 || where[v.a].before != 1) return false;
    const part_of_loss p = loss_parts(v.a, v.b);
    const id picked = make::sub(g, p.row, p.own);
    at[i] = make::sub(g, p.all, g.emit(g.shaped(op::rank_sum, picked, picked)));
    where[i] = {};
    return true;
  }
  // t (softmax(z) - 1[label]) = t (softmax_r(z) - 1[label]) + (exp(z_r - z) - 1) t softmax_r(z)
  constexpr bool loss_grad(id i) {
    const node& v = from[i];
    if (where[v.a].axis != 3 || where[v.a].before != 1) return false;
    const part_of_loss p = loss_parts(v.a, v.b);
    const id z = at[v.a], ids = to_whole(v.b), t = to_whole(v.c);
    auto slope = [&](dim first) {
      node n = g.shaped(op::cross_entropy_grad, z, z, ids, t);
      n.sum = true, n.k[0] = first;
      return g.emit(n);
    };
    const dim width = g.n[z].d[3];
    const id own = slope(g.times(width, rank)), softmax = slope(g.times(width, ranks_size));
    const id less = make::sub(g, make::unary(g, op::exp, make::sub(g, p.row, p.all)), g.constant(1));
    at[i] = make::add(g, own, make::mul(g, softmax, less));
    where[i] = {kind::part, 3};
    return true;
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
    if (e.slot < 0 || !among.has(from, e) || s.v[e.slot] == unknown || s.v[e.slot] % ranks == 0) continue;
    made.why << e.name << " = " << s.v[e.slot] << " cannot be divided among " << ranks
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
