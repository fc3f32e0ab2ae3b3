// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel sharding: shard() turns a graph into the graph of one of several ranks that divide some of its sizes.
// Every value is replicated, a shard of an axis, or a partial sum; how an operation passes that on is in the op table
// (axes, linear_in, sharding). Where experts are divided (expert parallelism), a rank computes the rows that choose its
// own. A base tensor is stored as this rank's shard. The other tensors of an adapter are small and replicated, and a
// rank slices them. Where an operation needs all of a value, shards are padded with zeros and all-reduced; a partial
// sum passes through operations that are linear in it and is all-reduced as late as possible. It works for any graph:
// forward, backward, a block.
#pragma once
#include <graft/derive/shard_loss.h>
#include <graft/derive/sharded_graph.h>

#include <initializer_list>

namespace graft {

struct sharded {
  builder g;
  text why{};  // the reason why the graph cannot be divided like this; empty: it can
};

namespace detail {

// Operations on a shard that is not one range of an axis: reshapes, concatenated shards such as queries, keys and
// values, heads, blocks of a rotation, rows of a table. Each function emits node i on a shard of its operand and
// returns true, or returns false, and the operand is replicated first.

// A reshape has its shard along the axis whose ranges begin where those of the operand do.
constexpr bool reshape_shard(sharded_graph& r, id i) {
  const id x = r.from[i].a;
  const placement p = r.where[x];
  long long outside = p.before;
  for (int k = 0; k < p.axis; ++k) outside *= r.size(x, k);
  long long outer = 1;
  for (int k = 0; k < 4; outer *= r.size(i, k++)) {
    if (outer <= 0 || outside % outer != 0 || !r.divides(i, k, outside / outer)) continue;
    return r.emit_on_placement(i, 0, p, {placement::kind::shard, k, outside / outer});
  }
  return false;
}
// Shards that are concatenated along their divided axis stay concatenated shards.
constexpr bool concat_shards(sharded_graph& r, id i) {
  const int axis = r.from[i].k[0].v;
  node v = r.copied(i);
  for (int k = 0; k < 2; ++k) {
    const id x = r.from[i].operand(k);
    const bool fits = r.where[x].what == placement::kind::concatenated_shards ||
                      (split_of(r.from, r.split_sizes, r.from[x].d[axis]) == size_split::part && r.divides(x, axis, 1));
    if (!fits) return false;
  }
  for (int k = 0; k < 2; ++k) {
    const id x = r.from[i].operand(k);
    r.set_operand(v, k, r.where[x].what == placement::kind::concatenated_shards ? r.at[x] : r.to_shard(x, axis, 1));
  }
  r.emit(i, {placement::kind::concatenated_shards, axis}, v);
  return true;
}
constexpr bool slice_shards(sharded_graph& r, id i) {
  const node& v = r.from[i];
  const placement p = r.where[v.a];
  if (v.what != op::slice || v.k[0].v != p.axis || split_of(r.from, r.split_sizes, v.d[p.axis]) != size_split::part)
    return false;
  if (!(v.k[1] == dim{0}) && split_of(r.from, r.split_sizes, v.k[1]) != size_split::part) return false;
  node made = r.copied(i);
  made.a = r.at[v.a], made.k[1] = made.k[1] == dim{0} ? dim{0} : r.shard_of(made.k[1]);
  // A slice whose size is a sum or a difference of sizes may contain several concatenated shards.
  const dim d = v.d[p.axis];
  const auto is = [&](size_entry::kind what) { return !d.is_static() && r.from.sizes.e[d.entry()].what == what; };
  const bool several = is(size_entry::kind::sum) || is(size_entry::kind::difference);
  r.emit(i, {several ? placement::kind::concatenated_shards : placement::kind::shard, p.axis}, made);
  return true;
}
constexpr bool shard_by_heads(sharded_graph& r, id i) {
  const node& v = r.from[i];
  const dim queries = v.what == op::attention_grad ? r.from[v.c].d[3] : v.d[3];
  if (r.where[v.a].what != placement::kind::concatenated_shards ||
      split_of(r.from, r.split_sizes, queries) != size_split::part)
    return false;
  if (r.from.sizes.value(queries, r.s) % (r.ranks * r.from.sizes.value(v.k[0], r.s)) != 0) return false;
  node made = r.copied(i);
  made.a = r.at[v.a], made.b = r.to_replicated(v.b);
  if (r.from[v.b].d[2] == dim{5})  // attention dropout draws by head number: this passes the rank's first head
    made.k[1] = r.g.times(r.g.over(r.shard_of(r.tables.size(queries)), made.k[0]), r.rank);
  if (v.c >= 0) made.c = v.what == op::attention_grad ? r.to_shard(v.c, 3, 1) : r.at[v.c];
  r.emit(i, {v.what == op::attention_grad ? placement::kind::concatenated_shards : placement::kind::shard, 3}, made);
  return true;
}
// Operations on blocks of the last axis: rotations, RoPE on heads, folds of a period. A shard must be whole blocks.
constexpr bool shard_in_blocks(sharded_graph& r, id i, int k) {
  const node& v = r.from[i];
  const placement p = r.where[v.operand(k)];
  const id blocks = v.what == op::rotate ? v.b : v.what == op::rotate_grad ? v.c : none_id;
  if (v.operand(k) == blocks || p.before != 1 || (v.what == op::rope && k != 0)) return false;
  const long long width = blocks >= 0 ? r.size(blocks, 3) : v.what == op::rope ? r.size(v.b, 3) : r.size(i, 3);
  if (r.size(v.operand(k), 3) / r.ranks % width != 0 || (blocks >= 0 && r.size(blocks, 0) != 1)) return false;
  node made = r.copied(i);
  made.a = r.to_shard(v.a, 3, 1);
  if (v.b >= 0)
    made.b = v.what == op::rotate ? r.to_shard(v.b, 1, 1)
             : v.what == op::rope ? r.to_replicated(v.b)
                                  : r.to_shard(v.b, 3, 1);
  if (v.c >= 0) made.c = r.to_shard(v.c, 1, 1);
  if (traits_of(v.what).sharding == axis_split::summands || (v.what == op::rotate_grad && r.size(v.c, 1) == 1))
    return r.emit(i, {placement::kind::partial}, made), true;
  r.emit(i, {placement::kind::shard, v.what == op::rotate_grad ? 1 : 3}, made);
  return true;
}
constexpr bool shard_gather(sharded_graph& r, id i) {
  const node& v = r.from[i];
  const placement p = r.where[v.a];
  if (r.replicable[v.a] || p.before != 1) return false;
  node made = r.copied(i);
  made.a = r.at[v.a], made.b = r.to_replicated(v.b);
  if (p.axis != (v.ta ? 3 : 2)) return r.emit(i, {placement::kind::shard, 3}, made), true;
  made.sum = true, made.k[0] = r.g.times(r.g.n[r.at[v.a]].d[p.axis], r.rank);
  r.emit(i, {placement::kind::partial}, made);
  return true;
}

// Operations on the rows of experts where these are divided. What a rank makes of the rows of its own experts is summed
// up by token into a partial sum, which is what the other ranks wait for; the router is whole on every rank.
constexpr bool has_shards_of_experts(const sharded_graph& r, id stack) {
  return split_of(r.from, r.split_sizes, r.from[stack].d[1]) == size_split::part && r.divides(stack, 1, 1);
}
constexpr id rows_of_experts(sharded_graph& r, id rows) {
  return r.where[rows].what == placement::kind::expert_rows ? r.at[rows] : r.to_replicated(rows);
}
constexpr bool shard_routed(sharded_graph& r, id i) {
  const node& v = r.from[i];
  const bool is_product = v.what == op::grouped_matmul, is_wgrad = v.what == op::grouped_wgrad;
  const bool of_own_rows = r.where[v.a].what == placement::kind::expert_rows;
  const bool by_expert_shards = v.what == op::dispatch && by_expert(v) && has_shards_of_experts(r, v.a);
  const bool makes_stack = is_wgrad || (v.what == op::combine && by_expert(v));
  const bool is_sharded = is_product              ? has_shards_of_experts(r, v.b)
                          : makes_stack           ? has_shards_of_experts(r, i) && (is_wgrad || of_own_rows)
                          : v.what == op::combine ? of_own_rows
                                                  : by_expert_shards;
  if (!is_sharded) return false;
  const id routing = is_product || is_wgrad ? v.c : v.b;
  node made = r.copied(i);
  made.a = by_expert_shards ? r.to_shard(v.a, 1, 1) : rows_of_experts(r, v.a);
  if (is_product) made.b = r.to_shard(v.b, 1, 1);
  if (is_wgrad) made.b = rows_of_experts(r, v.b);
  (is_product || is_wgrad ? made.c : made.b) = r.to_replicated(routing);
  r.take_own_experts(made, r.experts_of(routing));
  if (makes_stack) return r.emit(i, {placement::kind::shard, 1}, made), true;
  if (v.what == op::combine) return r.emit(i, {placement::kind::partial}, made), true;
  r.emit(i, {placement::kind::expert_rows, 2, 1, routing}, made);
  return true;
}
// Operations that keep rows apart are computed on the rows that a rank has.
constexpr bool keeps_expert_rows(sharded_graph& r, id i) {
  const node& v = r.from[i];
  placement after{};
  for (int k = 0; k < 3; ++k) {
    const id o = v.operand(k);
    if (o < 0 || r.where[o].what != placement::kind::expert_rows) continue;
    const int axis = is_routed(v.what) ? mixed_axis : axis_after(r.from, v, k, r.where[o].axis);
    const placement to{placement::kind::expert_rows, axis, 1, r.where[o].routing};
    if (axis < 0 || (after.what == to.what && !(after == to))) return false;
    after = to;
  }
  if (after.what != placement::kind::expert_rows) return false;
  node made = r.copied(i);
  for (int k = 0; k < 3; ++k)
    if (const id o = v.operand(k); o >= 0) r.set_operand(made, k, rows_of_experts(r, o));
  r.emit(i, after, made);
  return true;
}

struct sharder : sharded_graph {
  using sharded_graph::sharded_graph;

  constexpr void leaf(id i) {
    const node& v = from[i];
    const bool bound_per_rank = v.what == op::base || v.what == op::input || v.what == op::state;
    int axis = -1, several = 0;
    for (int k = 0; k < 4; ++k)
      if (split_of(from, split_sizes, v.d[k]) != size_split::all) axis = k, ++several;
    const bool shared = several == 1 && split_of(from, split_sizes, v.d[axis]) == size_split::part &&
                        divides(i, axis, 1) && is_named(v.what) && traits_of(v.what).from != source::integers &&
                        !scores_experts(i, axis);
    replicable[i] = !(bound_per_rank && shared);
    if (bound_per_rank && shared) {
      emit(i, {kind::shard, axis}, copied(i));
      return;
    }
    emit(i, {}, copied(i));
    if (!shared) return;
    replicated_at[i] = at[i];
    at[i] = to_shard(i, axis, 1), where[i] = {kind::shard, axis};
  }
  // Returns true for the weights of a router and for biases of experts, which are whole on every rank.
  constexpr bool scores_experts(id i, int axis) const {
    const dim d = from[i].d[axis];
    return axis > 1 && !d.is_static() && same_text(from.sizes.e[d.entry()].name, experts_name);
  }
  // Emits node i on the shard that operand k is, giving a shard or a partial sum; false: the operand is needed whole.
  constexpr bool passes_shards(id i, int k) {
    const node& v = from[i];
    const op_traits& of = traits_of(v.what);
    const placement p = where[v.operand(k)];
    if (of.kind == op_class::attention) return p.what == kind::concatenated_shards && shard_by_heads(*this, i);
    if (p.what == kind::concatenated_shards) return slice_shards(*this, i);
    if (of.axes == axis_flow::reshape) return reshape_shard(*this, i);
    if (of.axes == axis_flow::mix_axis && of.arity == 2 && v.k[0].v == p.axis) return concat_shards(*this, i);
    if (of.axes == axis_flow::gather) return k == 0 && shard_gather(*this, i);
    if (of.axes == axis_flow::scatter_values) return false;  // a sparse index addresses the unsharded matrix
    if (of.axes == axis_flow::row_labels)
      return k == 0 && (of.sharding == axis_split::summands ? sharded_loss(*this, i) : sharded_loss_grad(*this, i));
    const bool adds = of.sharding == axis_split::sums && p.axis == 3;
    if (of.sharding != axis_split::no && p.axis == 3 && !adds) return shard_in_blocks(*this, i, k);
    const int after = adds ? summed_axis : axis_after(from, v, k, p.axis);
    if (after == mixed_axis) return false;
    return emit_on_placement(i, k, p,
                             after == summed_axis ? placement{kind::partial} : placement{kind::shard, after, p.before});
  }
  // Emits node i on partial sums where the operation is linear in them, so that the all-reduce happens later.
  constexpr bool emit_partial(id i) {
    const node& v = from[i];
    const linearity sums = traits_of(v.what).linear_in;
    int summands = 0, wholes = 0;
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      summands += where[o].what == kind::partial ? 1 : 0, wholes += where[o].what == kind::replicated ? 1 : 0;
      if (where[o].what != kind::partial && where[o].what != kind::replicated) return false;
    }
    if (summands == 0 || sums == linearity::no) return false;
    if (sums == linearity::in_all && wholes > 0) return false;
    if (sums != linearity::in_all && summands > 1) return false;
    if (sums == linearity::in_first && where[v.a].what != kind::partial) return false;
    node made = copied(i);
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0) set_operand(made, k, at[o]);
    emit(i, {kind::partial}, made);
    return true;
  }
  constexpr void visit(id i) {
    const node& v = from[i];
    if (is_leaf(v.what)) return leaf(i);
    replicable[i] = true;
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0) replicable[i] = replicable[i] && replicable[o];
    if ((is_routed(v.what) && v.what != op::route && shard_routed(*this, i)) || keeps_expert_rows(*this, i)) return;
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0 && where[o].what == kind::expert_rows)
        at[o] = own_rows(o), where[o] = {kind::partial};
    if (emit_partial(i)) return;
    for (const bool costly : {true, false})  // operands that only an all-reduce makes whole decide first
      for (int k = 0; k < 3; ++k)
        if (const id o = v.operand(k); o >= 0 && replicable[o] != costly)
          if ((where[o].what == kind::shard || where[o].what == kind::concatenated_shards) && passes_shards(i, k))
            return;
    replicate_all(i);
  }
  // Outputs are shards where their sizes are divided, unless `whole` is set. Gradients of parameters are replicated, as
  // the parameters are.
  constexpr void outputs(bool whole) {
    for (int k = 0; k < from.outs; ++k) {
      const output& o = from.out[k];
      const bool gradient = !o.of_input && !same_text(o.name, "y");
      int axis = -1;
      for (int d = 0; d < 4; ++d)
        if (split_of(from, split_sizes, from[o.at].d[d]) == size_split::part) axis = d;
      const bool part = !whole && !gradient && axis >= 0 && divides(o.at, axis, 1);
      g.add_output(part ? to_shard(o.at, axis, 1) : to_replicated(o.at), o.name, tables.path(o.path), o.of_input);
    }
  }
};

}  // namespace detail

// `s` holds the sizes of the whole graph as far as they are known; the rows of a call need not be. With `whole` every
// rank has all of every output.
[[gnu::cold]] constexpr sharded shard(const graph& from, const sharded_sizes& split_sizes, size_values s,
                                      long long ranks, bool whole = false) {
  from.sizes.set_tokens(s, 10007);  // a prime, so that no other size is mistaken for the number of rows
  sharded made;
  for (int k = 0; k < from.sizes.count; ++k) {
    const size_entry& e = from.sizes.e[k];
    if (e.index < 0 || !split_sizes.has(from, e) || s.v[e.index] == unknown || s.v[e.index] % ranks == 0) continue;
    made.why << e.name << " = " << s.v[e.index] << " cannot be divided among " << ranks
             << " ranks; use a number of ranks that divides it";
    return made;
  }
  detail::sharder of(from, split_sizes, s, ranks);
  for (id i = 0; i < from.size; ++i) of.visit(i);
  of.outputs(whole);
  of.g.need.clear();  // requirements are checked on the whole graph; shards exist only where sizes can be divided
  of.g.bad = from.bad, of.g.bad.at = none_id;
  made.g = canonical(of.g);
  return made;
}

}  // namespace graft
