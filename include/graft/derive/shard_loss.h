// SPDX-License-Identifier: Apache-2.0
// Vocabulary-parallel cross entropy and its gradient: every rank has the logits of its part of the vocabulary, and
// three numbers per row are all-reduced instead of the logits.
#pragma once
#include <graft/derive/sharded_graph.h>

namespace graft::detail {

// log Σ exp z = m + log Σ_ranks exp(z_r - m), where z_r is the log-sum-exp of one rank's logits and m the largest z_r.
struct partial_loss {
  id row, minus_label, all;  // z_r; z_r minus the label's logit, where the rank has it; log-sum-exp of all ranks
};
constexpr partial_loss partial_losses(sharded_graph& r, id logits, id labels) {
  const id z = r.at[logits], ids = r.to_replicated(labels);
  auto entropy = [&](dim first) {
    node v = r.g.shaped(op::cross_entropy, z, z, ids);
    v.d[3] = {1}, v.sum = true, v.k[0] = first;
    return r.g.emit(v);
  };
  const dim width = r.g.n[z].d[3];
  const id row = entropy(r.g.times(width, r.ranks_size)), minus_label = entropy(r.g.times(width, r.rank));
  const id row_max = r.g.emit(r.g.shaped(op::all_reduce_max, row, row));
  const id powers = make_node::unary(r.g, op::exp, make_node::sub(r.g, row, row_max));
  const id all = make_node::add(
      r.g, row_max, make_node::unary(r.g, op::log, r.g.emit(r.g.shaped(op::all_reduce_sum, powers, powers))));
  return {row, minus_label, all};
}
constexpr bool sharded_loss(sharded_graph& r, id i) {
  const node& v = r.from[i];
  if (r.where[v.a].axis != 3 || r.where[v.a].before != 1) return false;
  const partial_loss p = partial_losses(r, v.a, v.b);
  const id picked = make_node::sub(r.g, p.row, p.minus_label);
  r.at[i] = make_node::sub(r.g, p.all, r.g.emit(r.g.shaped(op::all_reduce_sum, picked, picked)));
  r.where[i] = {};
  return true;
}
// t (softmax(z) - 1[label]) = t (softmax_r(z) - 1[label]) + (exp(z_r - z) - 1) t softmax_r(z)
constexpr bool sharded_loss_grad(sharded_graph& r, id i) {
  const node& v = r.from[i];
  if (r.where[v.a].axis != 3 || r.where[v.a].before != 1) return false;
  const partial_loss p = partial_losses(r, v.a, v.b);
  const id z = r.at[v.a], ids = r.to_replicated(v.b), t = r.to_replicated(v.c);
  auto slope = [&](dim first) {
    node n = r.g.shaped(op::cross_entropy_grad, z, z, ids, t);
    n.sum = true, n.k[0] = first;
    return r.g.emit(n);
  };
  const dim width = r.g.n[z].d[3];
  const id minus_label = slope(r.g.times(width, r.rank)), softmax = slope(r.g.times(width, r.ranks_size));
  const id less =
      make_node::sub(r.g, make_node::unary(r.g, op::exp, make_node::sub(r.g, p.row, p.all)), r.g.constant(1));
  r.at[i] = make_node::add(r.g, minus_label, make_node::mul(r.g, softmax, less));
  r.where[i] = {placement::kind::shard, 3};
  return true;
}

}  // namespace graft::detail
