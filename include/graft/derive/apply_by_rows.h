// SPDX-License-Identifier: Apache-2.0
// apply_by_rows: x W'ᵀ where every factor of W' is applied to the rows of x, so that nothing as large as W' is computed
// from parameters. That is cheaper where the parameters change before every call and the call has few rows, as in
// training; the gradient of a factor then follows from activations too, the one of a diagonal as Σ_t (dy B)_t ⊙ (x
// Aᵀ)_t. Three structures have forms of their own:
//     w[(k, n), i] = f_kn a_ki c_ni                   x wᵀ = f ⊙ ((x ⊙ c_n) aᵀ)_k                    RandLoRA's bases
//     w[(m, i), (n, j)] = κ_mn[(j + s i) mod b]       Σ_j x_nj w = Σ_d κ_mn[d] x_n[(d − s i) mod b]    C3A's kernels
//     [z1 z2] times four diagonals                    z1 ⊙ d11 + z2 ⊙ d21,  z1 ⊙ d12 + z2 ⊙ d22        RoAd's pairs
#pragma once
#include <graft/derive/apply.h>

#include <initializer_list>

namespace graft {

constexpr id apply_by_rows(builder& g, id w, id x, bool transposed = false);

namespace detail {

// Reshapes each row of x to a matrix of its own: [rows, 1, height, width].
constexpr id rows_as_matrices(builder& g, id x, dim height, dim width) {
  return make_node::reshape(g, x, g.times(g.n[x].d[1], g.n[x].d[2]), {1}, height, width);
}
constexpr id matrices_as_rows(builder& g, id matrices, id x, dim width) {
  const node in = g.n[x];
  return make_node::reshape(g, matrices, in.d[0], in.d[1], in.d[2], width);
}

// The factors of a matrix w with rows (k, n), which is a reshaped stack [1, k, n, i]: a [k, i], c [n, i] and f [k, n].
struct paired_rows {
  id a = none_id, c = none_id;
  sequence<id> factors;  // their product is f; each has both axes k and n, or one of them
};
[[gnu::cold]] constexpr paired_rows find_paired_rows(const builder& g, id stack) {
  paired_rows p;
  const node shape = g.n[stack];
  while (g.is(stack, op::mul)) {
    const node m = g.n[stack];
    const bool first = g.n[m.a].d[3] == dim{1} && same_shape(g.n[m.b], shape);
    if (!first && !(g.n[m.b].d[3] == dim{1} && same_shape(g.n[m.a], shape))) {
      const bool a_first = g.n[m.a].d[2] == dim{1};
      p.a = a_first ? m.a : m.b, p.c = a_first ? m.b : m.a;
      break;
    }
    p.factors.push(first ? m.a : m.b);
    stack = first ? m.b : m.a;
  }
  if (p.a < 0 || g.n[p.a].d[2] != dim{1} || g.n[p.c].d[1] != dim{1} || g.n[p.a].d[3] != shape.d[3] ||
      g.n[p.c].d[3] != shape.d[3])
    p.a = none_id;
  return p;
}
[[gnu::cold]] constexpr id apply_paired_rows(builder& g, id w, id x, bool transposed) {
  const node stack = g.n[g.n[w].a];
  if (stack.what != op::mul || stack.d[0] != dim{1} || stack.d[1] == dim{1}) return none_id;
  const paired_rows p = find_paired_rows(g, g.n[w].a);
  if (p.a < 0) return none_id;
  const dim k = stack.d[1], n = stack.d[2], width = stack.d[3];
  const id a = make_node::reshape(g, p.a, {1}, {1}, k, width);
  auto scaled = [&](id s) {  // [rows, 1, k, n]
    for (const id f : p.factors) s = make_node::mul(g, s, make_node::reshape(g, f, {1}, {1}, g.n[f].d[1], g.n[f].d[2]));
    return s;
  };
  if (!transposed) {
    const id each = make_node::mul(g, rows_as_matrices(g, x, {1}, width), p.c);  // [rows, 1, n, i]
    const id s = scaled(make_node::transpose(g, make_node::matmul(g, each, a, false, true)));
    return matrices_as_rows(g, s, x, g.n[w].d[2]);
  }
  const id s = make_node::transpose(g, scaled(rows_as_matrices(g, x, k, n)));
  const id each = make_node::mul(g, make_node::matmul(g, s, a), p.c);
  const id flat = matrices_as_rows(g, each, x, g.times(n, width));
  return make_node::fold_columns(g, flat, width);
}

// A circulant block holds shifted copies of a kernel of b numbers. Its product with a slice of x equals the product of
// the kernel with the circulant of that slice, shifted the other way, so that only x is expanded. A mirrored circulant
// is its own transpose.
[[gnu::cold]] constexpr id apply_circulants(builder& g, id w, id x, bool transposed) {
  const node squares = g.n[g.n[w].a];
  if (squares.what != op::circulant || squares.ta || squares.d[0] != dim{1} || (transposed && !squares.tb))
    return none_id;
  const node kernels = g.n[squares.a];  // [1, m, n, b]
  const dim m = kernels.d[1], n = kernels.d[2], b = kernels.d[3], in = transposed ? m : n, out = transposed ? n : m;
  const id kernel = transposed ? make_node::permute(g, squares.a, 0, 2, 1, 3) : squares.a;
  const id wide = make_node::circulant(g, rows_as_matrices(g, x, in, b), !squares.tb);  // [rows, 1, b, in b]
  // y is a variable because a new node may move all nodes: g.n[w] is read after the last node was made.
  const id y = make_node::transpose(
      g, make_node::matmul(g, wide, make_node::reshape(g, kernel, {1}, {1}, out, g.times(in, b)), false, true));
  return matrices_as_rows(g, y, x, transposed ? g.n[w].d[3] : g.n[w].d[2]);
}

// The vector d of a diagonal matrix d ⊙ I, or none_id for any other matrix.
constexpr id diagonal_of(const builder& g, id i) {
  if (!g.is(i, op::mul)) return none_id;
  const node m = g.n[i];
  return g.is(m.b, op::eye) ? m.a : g.is(m.a, op::eye) ? m.b : none_id;
}
[[gnu::cold]] constexpr id rotate_by_diagonals(builder& g, id z, id blocks, bool transposed) {
  const node all = g.n[blocks];
  if (all.what != op::concat || all.k[0] != dim{2} || all.d[0] != dim{1} || all.d[1] == dim{1}) return none_id;
  const node upper = g.n[all.a], lower = g.n[all.b];
  for (const node* v : {&upper, &lower})
    if (v->what != op::concat || v->k[0] != dim{3}) return none_id;
  const id d11 = diagonal_of(g, upper.a), d22 = diagonal_of(g, lower.b);
  const id d12 = diagonal_of(g, transposed ? lower.a : upper.b), d21 = diagonal_of(g, transposed ? upper.b : lower.a);
  for (const id d : {d11, d12, d21, d22})
    if (d < 0 || g.n[d].d[3] != dim{1}) return none_id;
  const node in = g.n[z];
  const dim n = all.d[1], h = g.n[upper.a].d[2];
  const id halves = make_node::reshape(g, z, g.times(in.d[1], in.d[2]), n, {2}, h);
  const id z1 = make_node::slice(g, halves, 2, {0}, {1}), z2 = make_node::slice(g, halves, 2, {1}, {1});
  auto times = [&](id half, id d) {
    return make_node::mul(g, half, make_node::reshape(g, d, {1}, g.n[d].d[1], {1}, h));
  };
  const id y1a = times(z1, d11), y1b = times(z2, d21), y2a = times(z1, d12), y2b = times(z2, d22);
  const id y1 = make_node::add(g, y1a, y1b), y2 = make_node::add(g, y2a, y2b);
  return make_node::reshape_like(g, make_node::concat(g, y1, y2, 2), z);
}
constexpr id rotate_rows(builder& g, id z, id blocks, bool transposed, int line) {
  const id pairs = rotate_by_diagonals(g, z, blocks, transposed);
  return pairs >= 0 ? pairs : make_node::rotate(g, z, blocks, transposed, line);
}

constexpr id apply_scaled_by_rows(builder& g, op scale_op, id w, id v, id x, bool transposed) {
  const bool column = is_column(g, v);
  const id factor_row = column ? make_node::as_row(g, v) : v;
  auto scale = [&](id a) {
    return scale_op == op::mul ? make_node::mul(g, a, factor_row) : make_node::div(g, a, factor_row);
  };
  if (is_scalar(g.n[v]) || column != transposed) return scale(apply_by_rows(g, w, x, transposed));
  return apply_by_rows(g, w, scale(x), transposed);
}
constexpr bool is_factor(const builder& g, id v, id w) {
  return is_scalar(g.n[v]) || (!has_shape_of(g, v, w) && (is_column(g, v) || is_row(g, v)));
}

}  // namespace detail

constexpr id apply_by_rows(builder& g, id w, id x, bool transposed) {
  const node v = g.n[w];
  switch (v.what) {
    case op::eye: return x;
    case op::add:
    case op::sub: {
      if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
      const id left = apply_by_rows(g, v.a, x, transposed), right = apply_by_rows(g, v.b, x, transposed);
      return make_node::pointwise(g, v.what, left, right, v.line);
    }
    case op::mul:
      if (detail::is_factor(g, v.a, w)) return detail::apply_scaled_by_rows(g, op::mul, v.b, v.a, x, transposed);
      if (detail::is_factor(g, v.b, w)) return detail::apply_scaled_by_rows(g, op::mul, v.a, v.b, x, transposed);
      if (!transposed && g.is(v.a, op::matmul) && g.is(v.b, op::matmul)) return apply_hadamard(g, v.a, v.b, x);
      break;
    case op::div:
      if (detail::is_factor(g, v.b, w)) return detail::apply_scaled_by_rows(g, op::div, v.a, v.b, x, transposed);
      break;
    case op::matmul:
      if (transposed) return apply_by_rows(g, v.b, apply_by_rows(g, v.a, x, !v.ta), !v.tb);
      return apply_by_rows(g, v.a, apply_by_rows(g, v.b, x, v.tb), v.ta);
    case op::transpose: return apply_by_rows(g, v.a, x, !transposed);
    case op::rotate:
      if (transposed) return detail::rotate_rows(g, apply_by_rows(g, v.a, x, true), v.b, v.tb, v.line);
      return apply_by_rows(g, v.a, detail::rotate_rows(g, x, v.b, !v.tb, v.line), false);
    case op::repeat:
      if (transposed) return make_node::repeat(g, apply_by_rows(g, v.a, x, true), v.d[3]);
      return apply_by_rows(g, v.a, make_node::fold_columns(g, x, g.n[v.a].d[3]), false);
    case op::kron:
      if (!transposed) return apply_kron(g, v.a, v.b, x);
      break;
    case op::reshape: {
      if (const id y = detail::apply_paired_rows(g, w, x, transposed); y >= 0) return y;
      if (const id y = detail::apply_circulants(g, w, x, transposed); y >= 0) return y;
      break;
    }
    default: break;
  }
  return make_node::matmul(g, x, w, false, !transposed, v.line);
}

}  // namespace graft
