// SPDX-License-Identifier: Apache-2.0
// Shape rules: what sizes the result of an operation has, and what must hold between those of its operands. The
// functions of make_node add a node to a graph, or return an equal one that exists. Operations that only models have
// are in rules_model.h, those of experts in rules_experts.h.
#pragma once
#include <graft/graph/builder.h>

namespace graft::make_node {

// ---- Arithmetic: elementwise ops with broadcasting, matrix products, row reductions

[[gnu::cold, gnu::noinline]] constexpr id pointwise(builder& g, op o, id a, id b, int line = 0) {
  node v = g.shaped(o, a, a, b, none_id, line);
  dim p[4]{}, q[4]{};
  const node& right = g.n[b];
  for (int i = 0; i < 4; ++i) {
    p[i] = v.d[i], q[i] = right.d[i];
    if (p[i].v == 1) v.d[i] = q[i];
  }
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i)
    if (p[i].v != 1 && q[i].v != 1 && p[i].v != q[i].v) g.require(requirement::kind::same, p[i], q[i], made, line);
  return made;
}
constexpr id unary(builder& g, op o, id a, int line = 0) { return g.emit(g.shaped(o, a, a, none_id, none_id, line)); }

constexpr id zero_of(builder& g, id a, id b) {  // zeros of the broadcast shape of a and b
  node v = g.shaped(op::zero, a, none_id);
  for (int i = 0; i < 4; ++i)
    if (g.n[a].d[i] == dim{1}) v.d[i] = g.n[b].d[i];
  v.name = "0";
  return g.emit(v);
}
constexpr bool broadcasts_to(const builder& g, id a, id b) {  // true where the broadcast shape of a and b is that of a
  const node &p = g.n[a], &q = g.n[b];
  for (int i = 0; i < 4; ++i)
    if (q.d[i].v != 1 && p.d[i].v != q.d[i].v) return false;
  return true;
}

[[gnu::cold, gnu::noinline]] constexpr id add(builder& g, id a, id b, int line = 0) {
  if (g.is(a, op::zero) && broadcasts_to(g, b, a)) return b;
  if (g.is(b, op::zero) && broadcasts_to(g, a, b)) return a;
  return pointwise(g, op::add, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id sub(builder& g, id a, id b, int line = 0) {
  if (g.is(b, op::zero) && broadcasts_to(g, a, b)) return a;
  return pointwise(g, op::sub, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id mul(builder& g, id a, id b, int line = 0) {
  if (g.is_value(a, 1) && broadcasts_to(g, b, a)) return b;
  if (g.is_value(b, 1) && broadcasts_to(g, a, b)) return a;
  if (g.is(a, op::zero) || g.is(b, op::zero)) return zero_of(g, a, b);
  if (g.is(a, op::constant) && g.is(b, op::constant)) return g.constant(g.n[a].value * g.n[b].value);
  return pointwise(g, op::mul, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id div(builder& g, id a, id b, int line = 0) {
  if (g.is_value(b, 1) && broadcasts_to(g, a, b)) return a;
  if (g.is(a, op::zero)) return zero_of(g, a, b);
  return pointwise(g, op::div, a, b, line);
}
constexpr id negate(builder& g, id a) { return mul(g, g.constant(-1), a); }

[[gnu::cold, gnu::noinline]] constexpr id matmul(builder& g, id a, id b, bool ta = false, bool tb = false, int line = 0,
                                                 bool sum = false) {
  while (g.is(a, op::transpose)) a = g.n[a].a, ta = !ta;
  while (g.is(b, op::transpose)) b = g.n[b].a, tb = !tb;
  const node p = g.n[a], q = g.n[b];
  if (p.what == op::eye && !tb && !sum) return b;
  node v = g.shaped(op::matmul, a, a, b, none_id, line);
  v.ta = ta, v.tb = tb, v.sum = sum;
  v.d[2] = ta ? p.d[3] : p.d[2];
  v.d[3] = tb ? q.d[2] : q.d[3];
  for (int i = 0; i < 2; ++i) v.d[i] = sum ? dim{1} : p.d[i] == dim{1} ? q.d[i] : p.d[i];
  if (p.what == op::zero || q.what == op::zero) {
    v.what = op::zero;
    v.a = v.b = none_id;
    v.ta = v.tb = v.sum = false;
    v.name = "0";
  }
  const id made = g.emit(v);
  g.require(requirement::kind::inner, ta ? p.d[2] : p.d[3], tb ? q.d[3] : q.d[2], made, line);
  for (int i = 0; i < 2; ++i)
    if (p.d[i] != dim{1} && q.d[i] != dim{1}) g.require(requirement::kind::same, p.d[i], q.d[i], made, line);
  return made;
}

// Sums each row of a ⊙ b into a column.
constexpr id row_dot(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::row_dot, a, a, b, none_id, line);
  v.d[3] = dim{1};
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i) g.require(requirement::kind::same, g.n[a].d[i], g.n[b].d[i], made, line);
  return made;
}
// Sums a over the axes along which `like` has size 1, which is the adjoint of broadcasting.
constexpr id sum_to(builder& g, id a, id like) {
  if (broadcasts_to(g, like, a)) return a;
  return g.emit(g.shaped(op::sum_to, like, a));
}

// ---- Rearrangement: transpose, reshape, slice, repeat, triangles, circulants, Kronecker products, look-ups, and the
// patches of a convolution

[[gnu::cold, gnu::noinline]] constexpr id transpose(builder& g, id a, int line = 0) {
  if (g.is(a, op::transpose)) return g.n[a].a;
  node v = g.shaped(op::transpose, a, a, none_id, none_id, line);
  v.d[2] = g.n[a].d[3], v.d[3] = g.n[a].d[2];
  if (g.is(a, op::zero)) v.what = op::zero, v.a = none_id, v.name = "0";
  return g.emit(v);
}
// Reinterprets the elements in row-major order with other sizes. The caller ensures that their product is equal.
[[gnu::cold, gnu::noinline]] constexpr id reshape(builder& g, id a, dim d0, dim d1, dim d2, dim d3, int line = 0) {
  while (g.is(a, op::reshape)) a = g.n[a].a;
  node v = g.shaped(op::reshape, a, a, none_id, none_id, line);
  v.d[0] = d0, v.d[1] = d1, v.d[2] = d2, v.d[3] = d3;
  if (same_shape(v, g.n[a])) return a;
  if (g.is(a, op::zero)) v.what = op::zero, v.a = none_id, v.name = "0";
  return g.emit(v);
}
constexpr id reshape_like(builder& g, id a, id like) {
  const node& s = g.n[like];
  return reshape(g, a, s.d[0], s.d[1], s.d[2], s.d[3]);
}
constexpr id as_row(builder& g, id column) { return reshape(g, column, {1}, {1}, {1}, g.n[column].d[2]); }
// Permutes the axes: axis i of the result is axis p_i of a.
constexpr id permute(builder& g, id a, int p0, int p1, int p2, int p3, int line = 0) {
  if (p0 == 0 && p1 == 1 && p2 == 2 && p3 == 3) return a;
  if (p0 == 0 && p1 == 1) return transpose(g, a, line);
  node v = g.shaped(op::permute, a, a, none_id, none_id, line);
  const int from[4] = {p0, p1, p2, p3};
  for (int i = 0; i < 4; ++i) v.k[i] = {from[i]}, v.d[i] = g.n[a].d[from[i]];
  return g.emit(v);
}
constexpr id unpermute(builder& g, id a, const node& attributes) {
  int back[4]{};
  for (int i = 0; i < 4; ++i) back[attributes.k[i].v] = i;
  return permute(g, a, back[0], back[1], back[2], back[3]);
}
// slice takes entries [from, from + size) of one axis; pad, its adjoint, puts them back into a tensor of zeros.
constexpr id slice(builder& g, id a, int axis, dim from, dim size, int line = 0) {
  if (g.n[a].d[axis] == size) return a;
  if (const node inner = g.n[a]; inner.what == op::slice && inner.k[0].v == axis)  // a slice of a slice is one slice
    return slice(g, inner.a, axis, g.plus(inner.k[1], from), size, line);
  node v = g.shaped(op::slice, a, a, none_id, none_id, line);
  v.k[0] = {axis}, v.k[1] = from, v.d[axis] = size;
  const id made = g.emit(v);
  g.require(requirement::kind::at_most, g.plus(from, size), g.n[a].d[axis], made, line);
  return made;
}
constexpr id pad(builder& g, id a, id like, const node& attributes) {
  node v = g.shaped(op::pad, like, a);
  v.k[0] = attributes.k[0], v.k[1] = attributes.k[1];
  return g.emit(v);
}
constexpr id pad(builder& g, id a, int axis, dim from, dim size, int line = 0) {
  node v = g.shaped(op::pad, a, a, none_id, none_id, line);
  v.k[0] = {axis}, v.k[1] = from, v.d[axis] = size;
  const id made = g.emit(v);
  g.require(requirement::kind::at_most, g.plus(from, g.n[a].d[axis]), size, made, line);
  return made;
}
// Concatenates a and b along one axis.
constexpr id concat(builder& g, id a, id b, int axis, int line = 0) {
  node v = g.shaped(op::concat, a, a, b, none_id, line);
  v.k[0] = {axis}, v.d[axis] = g.plus(g.n[a].d[axis], g.n[b].d[axis]);
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i)
    if (i != axis) g.require(requirement::kind::same, g.n[a].d[i], g.n[b].d[i], made, line);
  return made;
}
// repeat tiles the columns of a cyclically up to `cols` columns; fold, its adjoint, sums column i into i mod cols.
constexpr id repeat(builder& g, id a, dim cols, int line = 0) {
  if (g.n[a].d[3] == cols) return a;
  node v = g.shaped(op::repeat, a, a, none_id, none_id, line);
  v.d[3] = cols;
  return g.emit(v);
}
constexpr id fold_columns(builder& g, id a, dim cols, int line = 0) {
  if (g.n[a].d[3] == cols) return a;
  node v = g.shaped(op::fold_columns, a, a, none_id, none_id, line);
  v.d[3] = cols;
  return g.emit(v);
}
// skew expands row i, a packed strict upper triangle, to the i-th skew-symmetric matrix; unskew is its adjoint.
constexpr id skew(builder& g, id packed, dim b, int line = 0) {
  const node& p = g.n[packed];
  node v = g.shaped(op::skew, packed, packed, none_id, none_id, line);
  v.d[0] = {1}, v.d[1] = p.d[2], v.d[2] = b, v.d[3] = b;
  const id made = g.emit(v);
  g.require(requirement::kind::same, g.n[packed].d[3], g.triangle(b), made, line);
  return made;
}
constexpr id unskew(builder& g, id full, id like) { return g.emit(g.shaped(op::unskew, like, full)); }
// circulant expands each row of b numbers to a b x b circulant matrix; the matrices are concatenated along the columns:
//     c[i, n b + j] = a[n, (j - i) mod b]      mirrored: a[n, (j + i) mod b]
// circulant_sum is its adjoint, which sums the entries that are copies of one number.
constexpr id circulant(builder& g, id a, bool mirrored, int line = 0) {
  node v = g.shaped(op::circulant, a, a, none_id, none_id, line);
  v.d[2] = g.n[a].d[3], v.d[3] = g.times(g.n[a].d[2], g.n[a].d[3]), v.tb = mirrored;
  return g.emit(v);
}
constexpr id circulant_sum(builder& g, id squares, id like, bool mirrored) {
  node v = g.shaped(op::circulant, like, squares);
  v.ta = true, v.tb = mirrored;
  return g.emit(v);
}

// Requires that the operand is one matrix and no stack.
constexpr void require_one_matrix(builder& g, id a, id made, int line) {
  for (int i = 0; i < 2; ++i) g.require(requirement::kind::same, g.n[a].d[i], dim{1}, made, line);
}
constexpr id kron(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::kron, a, a, b, none_id, line);
  v.d[2] = g.times(g.n[a].d[2], g.n[b].d[2]);
  v.d[3] = g.times(g.n[a].d[3], g.n[b].d[3]);
  const id made = g.emit(v);
  require_one_matrix(g, a, made, line), require_one_matrix(g, b, made, line);
  return made;
}
[[gnu::cold, gnu::noinline]] constexpr id row_kron(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::row_kron, a, a, b, none_id, line);
  v.d[3] = g.times(g.n[a].d[3], g.n[b].d[3]);
  const id made = g.emit(v);
  g.require(requirement::kind::same, g.n[a].d[2], g.n[b].d[2], made, line);
  require_one_matrix(g, a, made, line), require_one_matrix(g, b, made, line);
  return made;
}

// Row t of the result is row ids[t] of w, or column ids[t] if by_column.
constexpr id gather(builder& g, id w, id ids, bool by_column) {
  node v = g.shaped(op::gather, w, w, ids);
  v.ta = by_column;
  v.d[2] = g.n[ids].d[3];
  v.d[3] = by_column ? g.n[w].d[2] : g.n[w].d[3];
  const id made = g.emit(v);
  require_one_matrix(g, w, made, 0);
  return made;
}
constexpr id scatter(builder& g, id rows, id ids, bool by_column, id like) {
  node v = g.shaped(op::scatter, like, rows, ids);
  v.ta = by_column;
  return g.emit(v);
}

// Scatters a column of n values into a zero matrix, where the index [2, n] lists the row and the column of each;
// gather_elements, its adjoint, gathers them.
constexpr id scatter_elements(builder& g, id values, id index, dim rows, dim cols, int line = 0) {
  node v = g.shaped(op::scatter_elements, values, values, index, none_id, line);
  v.d[0] = v.d[1] = {1}, v.d[2] = rows, v.d[3] = cols;
  const id made = g.emit(v);
  require_one_matrix(g, values, made, line);
  g.require(requirement::kind::same, g.n[values].d[3], dim{1}, made, line);
  g.require(requirement::kind::same, g.n[values].d[2], g.n[index].d[3], made, line);
  g.require(requirement::kind::same, g.n[index].d[2], dim{2}, made, line);
  return made;
}
constexpr id gather_elements(builder& g, id from, id index, id like) {
  return g.emit(g.shaped(op::gather_elements, like, from, index));
}
constexpr id gather_element_column(builder& g, id from, id index, int line = 0) {
  node v = g.shaped(op::gather_elements, from, from, index, none_id, line);
  v.d[0] = v.d[1] = v.d[3] = {1}, v.d[2] = g.n[index].d[3];
  const id made = g.emit(v);
  require_one_matrix(g, from, made, line);
  g.require(requirement::kind::same, g.n[index].d[2], dim{2}, made, line);
  return made;
}

struct patch_geometry {
  dim kernel_h{1}, kernel_w{1}, stride{1}, pad{0};
};
// im2col: turns an image [n, c, h, w] with zero padding into rows of patches [1, n, oh ow, c kh kw].
constexpr id im2col(builder& g, id image, patch_geometry s) {
  const node& p = g.n[image];
  node v = g.shaped(op::im2col, image, image);
  v.k[0] = s.kernel_h, v.k[1] = s.kernel_w, v.k[2] = s.stride, v.k[3] = s.pad;
  const dim oh = g.window(p.d[2], s.kernel_h, s.stride, s.pad), ow = g.window(p.d[3], s.kernel_w, s.stride, s.pad);
  v.d[0] = {1}, v.d[1] = p.d[0], v.d[2] = g.times(oh, ow);
  v.d[3] = g.times(p.d[1], g.times(s.kernel_h, s.kernel_w));
  return g.emit(v);
}
constexpr id col2im(builder& g, id rows, id image, const node& from) {
  node v = g.shaped(op::col2im, image, rows);
  for (int i = 0; i < 4; ++i) v.k[i] = from.k[i];
  return g.emit(v);
}

// ---- Inverses and series of square matrices, rotations (OFT, BOFT), and row-wise functions

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
