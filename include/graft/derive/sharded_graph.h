// SPDX-License-Identifier: Apache-2.0
// The graph of one rank while shard() builds it: where each value of the whole graph is found, and how a value changes
// its placement. Sharded values are padded with zeros and all-reduced to become replicated; replicated ones are sliced.
// Ranks divide named sizes: "out" of a layer, or the heads of a block. A size that follows from a divided one is
// divided too, out / b as well as 2 out. A rank has one of `ranks` equal parts, the one numbered `rank`; both are sizes
// of the graph, so that all ranks have the same graph and differ only in one number.
#pragma once
#include <graft/derive/traversal.h>
#include <graft/graph/axes.h>
#include <graft/graph/builder.h>
#include <graft/graph/canonical.h>
#include <graft/graph/rules_experts.h>
#include <graft/graph/rules_model.h>

namespace graft {

inline constexpr const char *ranks_name = "ranks", *rank_name = "rank";

struct sharded_sizes {
  const char* const* names = nullptr;
  int count = 0;
  constexpr bool has(const graph& g, const size_entry& e) const {
    for (int i = 0; i < count; ++i)
      if (g.paths().is(e.path, e.name, names[i])) return true;
    return false;
  }
};

// How a size is divided: the same on all ranks, an equal part on each, or neither (the product of two divided sizes).
enum class size_split : unsigned char { all, part, neither };

constexpr size_split split_of(const graph& g, const sharded_sizes& split_sizes, dim d) {
  if (d.is_static()) return size_split::all;
  const size_entry& e = g.sizes.e[d.entry()];
  if (e.what == size_entry::kind::name) return split_sizes.has(g, e) ? size_split::part : size_split::all;
  const size_split a = split_of(g, split_sizes, e.a), b = split_of(g, split_sizes, e.b);
  if (a == size_split::neither || b == size_split::neither) return size_split::neither;
  if (a == size_split::all && b == size_split::all)
    return split_of(g, split_sizes, e.c) == size_split::all && split_of(g, split_sizes, e.d) == size_split::all
               ? size_split::all
               : size_split::neither;
  switch (e.what) {
    case size_entry::kind::product: return a != b ? size_split::part : size_split::neither;
    case size_entry::kind::quotient: return b == size_split::all ? size_split::part : size_split::neither;
    case size_entry::kind::sum:
    case size_entry::kind::difference: return a == b ? size_split::part : size_split::neither;
    case size_entry::kind::name:
    case size_entry::kind::triangle:
    case size_entry::kind::window:
    case size_entry::kind::butterfly: break;
  }
  return size_split::neither;
}

// Finds the axis along which a leaf of a rank's graph is a shard; -1: the rank has all of it.
constexpr int sharded_axis(const graph& g, id leaf) {
  for (int k = 0; k < 4; ++k) {
    const dim d = g[leaf].d[k];
    if (d.is_static() || g.sizes.e[d.entry()].what != size_entry::kind::quotient) continue;
    const dim by = g.sizes.e[d.entry()].b;
    if (!by.is_static() && same_text(g.sizes.e[by.entry()].name, ranks_name)) return k;
  }
  return -1;
}

// Where the ranks have a value. shard: `axis` consists of `before` equal ranges, and each rank has one part of each
// range. concatenated_shards: `axis` consists of several shards, as queries, keys and values in one matrix do. partial:
// the values of all ranks add up to the value. expert_rows: of the rows of `axis`, which `routing` sorts by expert,
// each rank has those of its own experts, where they are in the whole value.
struct placement {
  enum class kind : unsigned char { replicated, shard, concatenated_shards, partial, expert_rows };
  kind what = kind::replicated;
  int axis = 0;
  long long before = 1;
  id routing = none_id;  // routing node in the whole graph
  friend constexpr bool operator==(const placement&, const placement&) = default;
};

namespace detail {

struct sharded_graph {
  using kind = placement::kind;
  const graph& from;
  const sharded_sizes& split_sizes;
  const size_values& s;  // sizes of the whole graph
  long long ranks;
  builder g{};
  table_copier tables;
  dim ranks_size{}, rank{};
  sequence<placement> where;
  sequence<id> at, replicated_at;
  sequence<bool> replicable;  // every rank can compute the whole value without an all-reduce

  constexpr sharded_graph(const graph& f, const sharded_sizes& a, const size_values& v, long long n)
      : from(f),
        split_sizes(a),
        s(v),
        ranks(n),
        tables(f, g),
        where(f.size),
        at(f.size, none_id),
        replicated_at(f.size, none_id),
        replicable(f.size, false) {
    ranks_size = g.size_named(ranks_name, 0, 2), rank = g.size_named(rank_name, 0, 1);
  }

  constexpr long long size(id i, int axis) const { return from.sizes.value(from[i].d[axis], s); }
  // Copies node i with the sizes and path of the new graph; the caller sets the operands.
  constexpr node copied(id i) {
    node v = from[i];
    for (int k = 0; k < 4; ++k) v.d[k] = tables.size(v.d[k]), v.k[k] = tables.size(v.k[k]);
    v.path = tables.path(v.path), v.a = v.b = v.c = none_id;
    return v;
  }
  static constexpr void set_operand(node& v, int k, id to) { (k == 0 ? v.a : k == 1 ? v.b : v.c) = to; }
  constexpr dim shard_of(dim d) { return g.over(d, ranks_size); }
  constexpr bool divides(id i, int axis, long long before) const {
    return before > 0 && size(i, axis) % (before * ranks) == 0;
  }

  // ---- from one placement to another
  // Reshapes a value to [sizes before the divided range, the rest], so that a shard of it is a range of columns.
  // `shared`: the value is a shard already.
  constexpr id flat(id value, const node& whole, const placement& p, bool shared) {
    dim outer = dim{static_cast<int>(p.before)}, inner = g.over(whole.d[p.axis], dim{static_cast<int>(p.before)});
    for (int k = 0; k < p.axis; ++k) outer = g.times(outer, whole.d[k]);
    for (int k = p.axis + 1; k < 4; ++k) inner = g.times(inner, whole.d[k]);
    return make_node::reshape(g, value, {1}, {1}, outer, shared ? shard_of(inner) : inner);
  }
  constexpr id to_replicated(id i) {
    const placement p = where[i];
    if (p.what == kind::replicated) return at[i];
    if (replicated_at[i] >= 0) return replicated_at[i];
    if (p.what == kind::partial) return replicated_at[i] = g.emit(g.shaped(op::all_reduce_sum, at[i], at[i]));
    if (p.what == kind::expert_rows && !replicable[i]) {
      const id mine = own_rows(i);
      return replicated_at[i] = g.emit(g.shaped(op::all_reduce_sum, mine, mine));
    }
    if (replicable[i] || p.what == kind::concatenated_shards) {
      node v = copied(i);
      for (int k = 0; k < 3; ++k)
        if (const id o = from[i].operand(k); o >= 0) set_operand(v, k, to_replicated(o));
      return replicated_at[i] = g.emit(v);
    }
    const node whole = copied(i);
    const id mine = flat(at[i], whole, p, true);
    node v = g.shaped(op::pad, mine, mine);
    const dim width = v.d[3];
    v.k[0] = {3}, v.k[1] = g.times(width, rank), v.d[3] = g.times(width, ranks_size);
    const id padded = g.emit(v), all = g.emit(g.shaped(op::all_reduce_sum, padded, padded));
    return replicated_at[i] = make_node::reshape(g, all, whole.d[0], whole.d[1], whole.d[2], whole.d[3]);
  }
  // Makes a node that reads the rows of experts read those of this rank's experts alone.
  constexpr void take_own_experts(node& v, dim experts) {
    v.k[2] = shard_of(tables.size(experts)), v.k[1] = g.times(v.k[2], rank);
  }
  // The number of experts of the whole graph: that of the scores that made a table of routing.
  constexpr dim experts_of(id routing) const { return from[from[routing].a].d[3]; }
  // A value on rows of experts with zeros in the rows of the other ranks' experts: a partial sum.
  constexpr id own_rows(id i) {
    const placement p = where[i];
    const node whole = copied(i);
    dim width{1};
    for (int k = p.axis + 1; k < 4; ++k) width = g.times(width, whole.d[k]);
    const id rows = make_node::reshape(g, at[i], {1}, {1}, whole.d[p.axis], width);
    node v = g.shaped(op::combine, rows, rows, to_replicated(p.routing));
    v.k[0] = dim{static_cast<int>(routed_by::row)};
    take_own_experts(v, experts_of(p.routing));
    return make_node::reshape(g, g.emit(v), whole.d[0], whole.d[1], whole.d[2], whole.d[3]);
  }
  constexpr id to_shard(id i, int axis, long long before) {
    if (where[i] == placement{kind::shard, axis, before}) return at[i];
    if (size(i, axis) == 1) return to_replicated(i);
    node whole = copied(i);
    const id all = to_replicated(i), rows = flat(all, whole, {kind::shard, axis, before}, false);
    const dim width = shard_of(g.n[rows].d[3]);
    whole.d[axis] = shard_of(whole.d[axis]);
    const id mine = make_node::slice(g, rows, 3, g.times(width, rank), width);
    return make_node::reshape(g, mine, whole.d[0], whole.d[1], whole.d[2], whole.d[3]);
  }

  // ---- nodes
  constexpr id emit(id i, const placement& as, node v) {
    if (as.what == kind::shard || as.what == kind::concatenated_shards) v.d[as.axis] = shard_of(v.d[as.axis]);
    where[i] = as;
    return at[i] = g.emit(v);
  }
  constexpr void replicate_all(id i) {
    node v = copied(i);
    for (int k = 0; k < 3; ++k)
      if (const id o = from[i].operand(k); o >= 0) set_operand(v, k, to_replicated(o));
    emit(i, {}, v);
  }
  // Emits node i with operand k placed as it is, and moves the other operands to the placement that fits.
  constexpr bool emit_on_placement(id i, int k, const placement& p, const placement& result) {
    node v = copied(i);
    for (int o = 0; o < 3; ++o) {
      const id x = from[i].operand(o);
      if (x < 0) continue;
      const int along = o == k ? p.axis : matching_axis(from[i], k, p.axis, o);
      set_operand(v, o, along < 0 ? to_replicated(x) : to_shard(x, along, p.before));
    }
    emit(i, result, v);
    return true;
  }
  // The axis of operand `other` that is divided together with an axis of operand k; -1: that operand is read whole.
  constexpr int matching_axis(const node& v, int k, int axis, int other) const {
    switch (traits_of(v.what).axes) {
      case axis_flow::elementwise:
      case axis_flow::mix_last:
      case axis_flow::mix_axis: return axis;
      case axis_flow::mix_last_of_two: return k != 1 && other != 1 ? axis : -1;
      case axis_flow::mix_matrix: return axis < 2 ? axis : -1;
      case axis_flow::product: {
        if (axis < 2) return axis;
        if (axis_after(from, v, k, axis) != summed_axis) return -1;
        const bool transposed = other == 0 ? v.ta : v.tb;
        return (other == 0) != transposed ? 3 : 2;
      }
      case axis_flow::sum_into_blocks: return other < 2 ? axis : -1;
      default: return -1;
    }
  }
};

}  // namespace detail

}  // namespace graft
