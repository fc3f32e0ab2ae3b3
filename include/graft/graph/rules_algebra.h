// SPDX-License-Identifier: Apache-2.0
// Shape rules of inverses and series of square matrices, of rotations (OFT, BOFT), and of the row-wise functions.
#pragma once
#include <graft/graph/rules_layout.h>

namespace graft::make_node {

constexpr id square(builder& g, op o, id a, id b, dim terms, int line) {
  g.require(requirement::kind::square, g.n[a].d[2], g.n[a].d[3], a, line);
  node v = g.shaped(o, a, a, b, none_id, line);
  v.k[0] = terms;
  return g.emit(v);
}
constexpr id inverse(builder& g, id a, int line = 0) { return square(g, op::inverse, a, none_id, {0}, line); }
// PEFT's Cayley transform as a Neumann series of `terms` terms: I + 2Q + 2Q² + … + Q^(terms-1).
constexpr id neumann(builder& g, id q, dim terms, int line = 0) {
  return square(g, op::neumann, q, none_id, terms, line);
}
constexpr id neumann_grad(builder& g, id q, id t, dim terms) { return square(g, op::neumann_grad, q, t, terms, 0); }

// x R along the last axis, or x Rᵀ if transposed, with R = B[m-1] … B[0] of block-diagonal factors in butterfly order.
// The blocks are [m, n, b, b], or [m, 1, b, b] when all n blocks of a factor share one.
constexpr id rotate(builder& g, id x, id blocks, bool transposed, int line = 0) {
  if (g.is(x, op::zero)) return x;
  node v = g.shaped(op::rotate, x, x, blocks, none_id, line);
  v.tb = transposed;
  const id made = g.emit(v);
  const node p = g.n[x], q = g.n[blocks];
  g.require(requirement::kind::square, q.d[2], q.d[3], blocks, line);
  if (q.d[1] == dim{1})
    g.require(requirement::kind::divides, p.d[3], q.d[3], made, line);
  else
    g.require(requirement::kind::inner, p.d[3], g.times(q.d[1], q.d[3]), made, line);
  if (q.d[0] != dim{1}) g.require(requirement::kind::divides, p.d[3], g.butterfly(q.d[3], q.d[0]), made, line);
  return made;
}
constexpr id rotate_grad(builder& g, id x, id t, id blocks, bool transposed) {
  node v = g.shaped(op::rotate_grad, blocks, x, t, blocks);
  v.tb = transposed;
  return g.emit(v);
}

// Softmax over the k largest entries of each row; the other entries are zero.
constexpr id topk_softmax(builder& g, id a, dim k, int line = 0) {
  node v = g.shaped(op::topk_softmax, a, a, none_id, none_id, line);
  v.k[0] = k;
  return g.emit(v);
}
// Layer norm without its affine factors, (x - mean) / sqrt(var + eps) per row; RMS norm if rms.
constexpr id normalize(builder& g, id x, id eps, bool rms, int line = 0) {
  node v = g.shaped(op::normalize, x, x, eps, none_id, line);
  v.k[0] = {rms ? 1 : 0};
  return g.emit(v);
}
constexpr id normalize_grad(builder& g, id x, id eps, id t, bool rms) {
  node v = g.shaped(op::normalize_grad, x, x, eps, t);
  v.k[0] = {rms ? 1 : 0};
  return g.emit(v);
}

}  // namespace graft::make_node
