// SPDX-License-Identifier: Apache-2.0
// Cross entropy over a vocabulary that ranks share, and its gradient: every rank has the logits of its own tokens, and three
// numbers of each row travel instead of the logits.
#pragma once
#include <graft/derive/rank_graph.h>

namespace graft::detail {

// log Σ exp z = m + log Σ_ranks exp(z_r - m), of z_r = log Σ exp of a rank's part, and m the largest of them.
struct part_of_loss {
  id row, own, all;  // of the rank without the label; with it; of all ranks without it
};
constexpr part_of_loss loss_parts(rank_graph& r, id logits, id labels) {
  const id z = r.at[logits], ids = r.to_whole(labels);
  auto entropy = [&](dim first) {
    node v = r.g.shaped(op::cross_entropy, z, z, ids);
    v.d[3] = {1}, v.sum = true, v.k[0] = first;
    return r.g.emit(v);
  };
  const dim width = r.g.n[z].d[3];
  const id row = entropy(r.g.times(width, r.ranks_size)), own = entropy(r.g.times(width, r.rank));
  const id most = r.g.emit(r.g.shaped(op::rank_max, row, row));
  const id powers = make::unary(r.g, op::exp, make::sub(r.g, row, most));
  const id all = make::add(r.g, most, make::unary(r.g, op::log, r.g.emit(r.g.shaped(op::rank_sum, powers, powers))));
  return {row, own, all};
}
constexpr bool shared_loss(rank_graph& r, id i) {
  const node& v = r.from[i];
  if (r.where[v.a].axis != 3 || r.where[v.a].before != 1) return false;
  const part_of_loss p = loss_parts(r, v.a, v.b);
  const id picked = make::sub(r.g, p.row, p.own);
  r.at[i] = make::sub(r.g, p.all, r.g.emit(r.g.shaped(op::rank_sum, picked, picked)));
  r.where[i] = {};
  return true;
}
// t (softmax(z) - 1[label]) = t (softmax_r(z) - 1[label]) + (exp(z_r - z) - 1) t softmax_r(z)
constexpr bool shared_loss_grad(rank_graph& r, id i) {
  const node& v = r.from[i];
  if (r.where[v.a].axis != 3 || r.where[v.a].before != 1) return false;
  const part_of_loss p = loss_parts(r, v.a, v.b);
  const id z = r.at[v.a], ids = r.to_whole(v.b), t = r.to_whole(v.c);
  auto slope = [&](dim first) {
    node n = r.g.shaped(op::cross_entropy_grad, z, z, ids, t);
    n.sum = true, n.k[0] = first;
    return r.g.emit(n);
  };
  const dim width = r.g.n[z].d[3];
  const id own = slope(r.g.times(width, r.rank)), softmax = slope(r.g.times(width, r.ranks_size));
  const id less = make::sub(r.g, make::unary(r.g, op::exp, make::sub(r.g, p.row, p.all)), r.g.constant(1));
  r.at[i] = make::add(r.g, own, make::mul(r.g, softmax, less));
  r.where[i] = {placement::kind::part, 3};
  return true;
}

}  // namespace graft::detail
