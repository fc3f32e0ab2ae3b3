// SPDX-License-Identifier: Apache-2.0
// Shape rules of a mixture of experts: top-k routing, dispatch (permute tokens), combine (unpermute). A row of x takes
// k experts, so that tokens * k rows, sorted by expert, are multiplied by the experts' matrices; which rows an expert
// has is known at run time only, and their number is bounded by tokens * k. Weights have the expert axis second, [1,
// experts, out, in], and all other tensors of an expert too.
//
// `routing` is a matrix [tokens * k, 3] of whole numbers: of sorted row p its token and its expert, and of the j-th
// expert of token t, in the order of the experts, its sorted row (line t * k + j). A call may be computed in chunks of
// tokens: then each chunk has a table of its own, whose tokens and rows count from the chunk's first one.
#pragma once
#include <graft/graph/axes.h>
#include <graft/graph/rules.h>

namespace graft {

// A rank that has some of the experts (derive/shard.h) computes their rows alone: k[1] is its first expert, and k[2]
// how many it has, 0 where it has all. Rows of other experts have no meaning then, and combine leaves them out.
inline constexpr const char* experts_name = "experts";

// Names of the extra input (row weights) and outputs (router statistics) of blocks with the auxiliary router loss. Like
// dy, the gradient of `sums` is an input of backward.
namespace router_loss_names {
inline constexpr const char *row_weights = "row_weights", *counts = "router_counts", *sums = "router_sums",
                            *sums_gradient = "drouter_sums";
}

namespace make_node {

// The k experts with the largest scores of each row of [tokens, experts]; of equal ones the first are taken.
constexpr id route(builder& g, id scores, dim k, int line = 0) {
  node v = g.shaped(op::route, scores, scores, none_id, none_id, line);
  v.k[0] = k, v.d[2] = g.times(g.n[scores].d[2], k), v.d[3] = dim{3};
  const id made = g.emit(v);
  g.require(requirement::kind::at_most, k, g.n[scores].d[3], made, line);
  require_one_matrix(g, scores, made, line);
  return made;
}
// dispatch permutes tokens: row p of the result is the row of `from` that sorted row p takes. combine, its adjoint,
// unpermutes: it sums sorted rows into the rows that they came from; rows that nobody took get zero.
constexpr id dispatch(builder& g, id from, id routing, routed_by routed, int line = 0) {
  node v = g.shaped(op::dispatch, from, from, routing, none_id, line);
  v.k[0] = dim{static_cast<int>(routed)};
  v.d[0] = v.d[1] = dim{1}, v.d[2] = g.n[routing].d[2];
  if (routed == routed_by::both) v.d[3] = dim{1};
  if (g.is(from, op::zero)) v.what = op::zero, v.a = v.b = none_id, v.k[0] = dim{0}, v.name = "0";
  return g.emit(v);
}
constexpr id combine(builder& g, id rows, id routing, routed_by routed, id like, int line = 0) {
  node v = g.shaped(op::combine, like, rows, routing, none_id, line);
  v.k[0] = dim{static_cast<int>(routed)};
  return g.emit(v);
}
// Each sorted row times its expert's matrix, or its transpose (tb). A matrix that all experts share is one product.
constexpr id grouped_matmul(builder& g, id rows, id w, id routing, bool tb, int line = 0) {
  while (g.is(w, op::transpose)) w = g.n[w].a, tb = !tb;
  const node p = g.n[rows], q = g.n[w];
  if (q.d[1] == dim{1}) return matmul(g, rows, w, false, tb, line);
  node v = g.shaped(op::grouped_matmul, rows, rows, w, routing, line);
  v.tb = tb, v.d[3] = tb ? q.d[2] : q.d[3];
  if (p.what == op::zero || q.what == op::zero)
    v.what = op::zero, v.a = v.b = v.c = none_id, v.tb = false, v.name = "0";
  const id made = g.emit(v);
  g.require(requirement::kind::inner, p.d[3], tb ? q.d[3] : q.d[2], made, line);
  g.require(requirement::kind::same, p.d[2], g.n[routing].d[2], made, line);
  return made;
}
// aᵀ b over the rows of each expert, in the shape of the experts' matrices.
constexpr id grouped_wgrad(builder& g, id a, id b, id routing, id like) {
  return g.emit(g.shaped(op::grouped_wgrad, like, a, b, routing));
}

}  // namespace make_node
}  // namespace graft
