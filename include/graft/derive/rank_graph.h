// SPDX-License-Identifier: Apache-2.0
// The graph of one of several ranks while it is made: where each value of the whole graph is found in it, and how a value
// comes from one place to another. A part is put among zeros and summed to be whole; a whole value is cut to be a part.
#pragma once
#include <graft/derive/shard_sizes.h>
#include <graft/derive/walk.h>
#include <graft/graph/axes.h>
#include <graft/graph/canonical.h>
#include <graft/graph/rules_model.h>

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

namespace detail {

struct rank_graph {
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

  constexpr rank_graph(const graph& f, const shared_sizes& a, const size_values& v, long long n)
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
};

}  // namespace detail

}  // namespace graft
