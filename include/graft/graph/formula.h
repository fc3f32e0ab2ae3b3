// SPDX-License-Identifier: Apache-2.0
// The surface syntax: a formula is written with operators and reads like the paper. Evaluating it captures the graph.
//     auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
//     return W + p.scalar("scaling") * (B * A);
// `*` is the matrix product; with a scalar it scales, and with a column [n, 1] on the left it scales the n rows.
// Elementwise products are mul(a, b). Every operator notes the line it stands on, for the error messages.
#pragma once
#include <graft/graph/rules_algebra.h>

namespace graft {

struct extent {  // a size inside a formula
  builder* g = nullptr;
  dim d{};
  constexpr extent(int known) : d{known} {}
  constexpr extent(builder* b, dim size) : g(b), d(size) {}
};
constexpr builder* either(builder* a, builder* b) { return a != nullptr ? a : b; }
constexpr extent operator*(extent a, extent b) {
  builder* g = either(a.g, b.g);
  return g == nullptr ? extent(a.d.v * b.d.v) : extent(g, g->times(a.d, b.d));
}
struct divisor {
  extent e;
  int line;
  constexpr divisor(extent by, int where = __builtin_LINE()) : e(by), line(where) {}
  constexpr divisor(int by, int where = __builtin_LINE()) : e(by), line(where) {}
};
constexpr extent operator/(extent a, divisor b) {  // exact; the layer is rejected when b does not divide a
  builder* g = either(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v / b.e.d.v) : extent(g, g->over(a.d, b.e.d, b.line));
}

struct ex {
  builder* g = nullptr;
  id i = none_id;
  constexpr const node& operator*() const { return g->n[i]; }
  constexpr extent rows() const { return {g, g->n[i].d[2]}; }
  constexpr extent cols() const { return {g, g->n[i].d[3]}; }
};
struct at {  // an operand that remembers where it was written
  ex e;
  int line;
  constexpr at(ex operand, int where = __builtin_LINE()) : e(operand), line(where) {}
};

constexpr ex operator*(ex a, at b) {
  builder& g = *a.g;
  const node &p = *a, &q = *b.e;
  if (is_scalar(p) || is_scalar(q)) return {&g, make::mul(g, a.i, b.e.i, b.line)};
  if (p.d[3] == dim{1} && p.d[2] == q.d[2] && q.d[3] != dim{1}) return {&g, make::mul(g, a.i, b.e.i, b.line)};
  return {&g, make::matmul(g, a.i, b.e.i, false, false, b.line)};
}
constexpr ex operator*(double s, at b) { return {b.e.g, make::mul(*b.e.g, b.e.g->constant(s), b.e.i, b.line)}; }
constexpr ex operator+(ex a, at b) { return {a.g, make::add(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator-(ex a, at b) { return {a.g, make::sub(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator/(ex a, at b) { return {a.g, make::div(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex mul(ex a, at b) { return {a.g, make::mul(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex min(ex a, at b) { return {a.g, make::pointwise(*a.g, op::minimum, a.i, b.e.i, b.line)}; }

constexpr ex t(at a) { return {a.e.g, make::transpose(*a.e.g, a.e.i, a.line)}; }
constexpr ex sqrt(at a) { return {a.e.g, make::unary(*a.e.g, op::sqrt, a.e.i, a.line)}; }
constexpr ex exp(at a) { return {a.e.g, make::unary(*a.e.g, op::exp, a.e.i, a.line)}; }
constexpr ex tanh(at a) { return {a.e.g, make::unary(*a.e.g, op::tanh, a.e.i, a.line)}; }
constexpr ex sigmoid(at a) { return {a.e.g, make::unary(*a.e.g, op::sigmoid, a.e.i, a.line)}; }
constexpr ex relu(at a) { return {a.e.g, make::unary(*a.e.g, op::relu, a.e.i, a.line)}; }
constexpr ex detach(at a) { return {a.e.g, make::unary(*a.e.g, op::detach, a.e.i, a.line)}; }
constexpr ex row_dot(ex a, at b) { return {a.g, make::row_dot(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex row_norm(at a) { return sqrt({row_dot(a.e, a), a.line}); }
constexpr ex col_norm(at a) {  // a row [1, n]
  const ex column = row_norm({t(a), a.line});
  return t({column, a.line});
}
constexpr ex strict_upper(at a) { return {a.e.g, make::unary(*a.e.g, op::upper, a.e.i, a.line)}; }
constexpr ex inverse(at a) { return {a.e.g, make::inverse(*a.e.g, a.e.i, a.line)}; }
constexpr ex skew(ex packed, extent b, int line = __builtin_LINE()) {
  return {packed.g, make::skew(*packed.g, packed.i, b.d, line)};
}
constexpr ex neumann(ex q, extent terms, int line = __builtin_LINE()) {
  return {q.g, make::neumann(*q.g, q.i, terms.d, line)};
}
constexpr ex kron(ex a, at b) { return {a.g, make::kron(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex tile(ex a, extent cols, int line = __builtin_LINE()) { return {a.g, make::tile(*a.g, a.i, cols.d, line)}; }
constexpr ex topk_softmax(ex a, extent k, int line = __builtin_LINE()) {
  return {a.g, make::topk_softmax(*a.g, a.i, k.d, line)};
}
constexpr ex reshape(ex a, extent d1, extent d2, extent d3, int line = __builtin_LINE()) {
  const node& v = *a;
  const dim before = a.g->times(a.g->times(v.d[0], v.d[1]), a.g->times(v.d[2], v.d[3]));
  const id made = make::reshape(*a.g, a.i, {1}, d1.d, d2.d, d3.d, line);
  a.g->require(requirement::kind::same, before, a.g->times(d1.d, a.g->times(d2.d, d3.d)), made, line);
  return {a.g, made};
}
constexpr ex reshape(ex a, extent rows, extent cols) { return reshape(a, 1, rows, cols); }
// W Rᵀ, R the rotation that activations undergo as x R.
constexpr ex unrotate(ex w, at blocks) { return {w.g, make::rotate(*w.g, w.i, blocks.e.i, true, blocks.line)}; }
constexpr ex rotate(ex w, at blocks) { return {w.g, make::rotate(*w.g, w.i, blocks.e.i, false, blocks.line)}; }
// A fact the algebra may use: the inverse of this matrix is its transpose.
constexpr ex orthogonal(ex a) {
  a.g->n[a.i].orthogonal = true;
  return a;
}
// A callable outside the language: runs in eager mode, breaks the graph everywhere else.
constexpr ex host(const char* name, at a) {
  node v = a.e.g->shaped(op::host, a.e.i, a.e.i, none_id, none_id, a.line);
  v.name = name;
  return {a.e.g, a.e.g->emit(v)};
}

// The same with a number of rows that is known only after it ran.
constexpr ex host_rows(const char* name, extent rows, at a) {
  node v = a.e.g->shaped(op::host, a.e.i, a.e.i, none_id, none_id, a.line);
  v.name = name;
  v.tb = true;
  v.d[2] = rows.d;
  return {a.e.g, a.e.g->emit(v)};
}

struct leaf_name {
  const char* s;
  int line;
  constexpr leaf_name(const char* name, int where = __builtin_LINE()) : s(name), line(where) {}
};

// Where a formula declares its leaves. Leaf names are the names of the tensors in PEFT's files.
struct scope {
  builder* g;
  // A size by name: the number where the type gives one, else whatever the tensors turn out to have.
  constexpr extent size(const char* name, int known = dyn, int nominal = 16) const {
    return known >= 0 ? extent(g, dim{known}) : extent(g, g->size_named(name, nominal));
  }
  constexpr extent triangle(extent b) const { return {g, g->triangle(b.d)}; }
  constexpr ex leaf(op o, leaf_name name, int rank, extent d0, extent d1, extent d2, extent d3) const {
    return {g, g->leaf(o, name.s, rank, d0.d, d1.d, d2.d, d3.d, name.line)};
  }
  // One size makes a column; more are row-major, the last two being rows and columns.
  constexpr ex param(leaf_name name, extent n) const { return leaf(op::param, name, 1, 1, 1, n, 1); }
  constexpr ex param(leaf_name name, extent rows, extent cols) const {
    return leaf(op::param, name, 2, 1, 1, rows, cols);
  }
  constexpr ex param(leaf_name name, extent d1, extent d2, extent d3) const {
    return leaf(op::param, name, 3, 1, d1, d2, d3);
  }
  constexpr ex param(leaf_name name, extent d0, extent d1, extent d2, extent d3) const {
    return leaf(op::param, name, 4, d0, d1, d2, d3);
  }
  constexpr ex frozen(leaf_name name, extent rows, extent cols) const {
    return leaf(op::frozen, name, 2, 1, 1, rows, cols);
  }
  constexpr ex scalar(leaf_name name) const { return leaf(op::scalar, name, 0, 1, 1, 1, 1); }
  constexpr ex constant(double v) const { return {g, g->constant(v)}; }
  constexpr ex eye(extent n) const { return leaf(op::eye, {"I", 0}, 2, 1, 1, n, n); }
};

}  // namespace graft
