// SPDX-License-Identifier: Apache-2.0
// The surface syntax: a formula is written with operators and reads like the paper. Evaluating it captures the graph.
//     auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
//     return W + p.scalar("scaling") * (B * A);
// `*` is the matrix product; with a scalar or a number it scales, and with a column [n, 1] on the left it scales the n
// rows. Elementwise products are mul(a, b). Every operator notes the line it stands on, for the error messages.
#pragma once
#include <graft/graph/canonical.h>
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
struct divisor {  // a size on the right of / or -, with its line
  extent e;
  int line;
  constexpr divisor(extent by, int where = __builtin_LINE()) : e(by), line(where) {}
  constexpr divisor(int by, int where = __builtin_LINE()) : e(by), line(where) {}
};
constexpr extent operator/(extent a, divisor b) {  // exact; the layer is rejected when b does not divide a
  builder* g = either(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v / b.e.d.v) : extent(g, g->over(a.d, b.e.d, b.line));
}

constexpr extent operator+(extent a, extent b) {
  builder* g = either(a.g, b.g);
  return g == nullptr ? extent(a.d.v + b.d.v) : extent(g, g->plus(a.d, b.d));
}
constexpr extent operator-(extent a, divisor b) {
  builder* g = either(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v - b.e.d.v) : extent(g, g->minus(a.d, b.e.d, b.line));
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
constexpr ex operator+(ex a, at b) { return {a.g, make::add(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator-(ex a, at b) { return {a.g, make::sub(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator/(ex a, at b) { return {a.g, make::div(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex mul(ex a, at b) { return {a.g, make::mul(*a.g, a.i, b.e.i, b.line)}; }
// Numbers.
constexpr at same_as(at like, double s) { return {{like.e.g, like.e.g->constant(s)}, like.line}; }
constexpr ex operator*(double s, at b) { return same_as(b, s).e * b; }
constexpr ex operator+(double s, at b) { return same_as(b, s).e + b; }
constexpr ex operator-(double s, at b) { return same_as(b, s).e - b; }
constexpr ex operator/(double s, at b) { return same_as(b, s).e / b; }
constexpr ex operator*(at a, double s) { return s * a; }
constexpr ex operator+(at a, double s) { return a.e + same_as(a, s); }
constexpr ex operator-(at a, double s) { return a.e - same_as(a, s); }
constexpr ex operator/(at a, double s) { return a.e / same_as(a, s); }
constexpr ex operator-(at a) { return -1.0 * a; }
constexpr ex& operator+=(ex& a, at b) { return a = a + b; }
constexpr ex& operator-=(ex& a, at b) { return a = a - b; }
constexpr ex& operator*=(ex& a, at b) { return a = a * b; }
constexpr ex& operator/=(ex& a, at b) { return a = a / b; }
constexpr ex max(ex a, at b) { return {a.g, make::pointwise(*a.g, op::maximum, a.i, b.e.i, b.line)}; }
constexpr ex min(ex a, at b) { return {a.g, make::pointwise(*a.g, op::minimum, a.i, b.e.i, b.line)}; }

constexpr ex t(at a) { return {a.e.g, make::transpose(*a.e.g, a.e.i, a.line)}; }
constexpr ex sqrt(at a) { return {a.e.g, make::unary(*a.e.g, op::sqrt, a.e.i, a.line)}; }
constexpr ex exp(at a) { return {a.e.g, make::unary(*a.e.g, op::exp, a.e.i, a.line)}; }
constexpr ex log(at a) { return {a.e.g, make::unary(*a.e.g, op::log, a.e.i, a.line)}; }
constexpr ex sin(at a) { return {a.e.g, make::unary(*a.e.g, op::sin, a.e.i, a.line)}; }
constexpr ex cos(at a) { return {a.e.g, make::unary(*a.e.g, op::cos, a.e.i, a.line)}; }
constexpr ex erf(at a) { return {a.e.g, make::unary(*a.e.g, op::erf, a.e.i, a.line)}; }
constexpr ex silu(at a) { return {a.e.g, make::unary(*a.e.g, op::silu, a.e.i, a.line)}; }
constexpr ex gelu(at a) { return {a.e.g, make::unary(*a.e.g, op::gelu, a.e.i, a.line)}; }
constexpr ex gelu_tanh(at a) { return {a.e.g, make::unary(*a.e.g, op::gelu_tanh, a.e.i, a.line)}; }
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
// An orthonormal basis of the columns of a, the Q of LAPACK's a = Q R: a has at least as many rows.
constexpr ex orthonormal(at a) { return {a.e.g, make::unary(*a.e.g, op::orthonormal, a.e.i, a.line)}; }
constexpr ex skew(ex packed, extent b, int line = __builtin_LINE()) {
  return {packed.g, make::skew(*packed.g, packed.i, b.d, line)};
}
constexpr ex circulant(ex rows, bool mirrored = false, int line = __builtin_LINE()) {
  return {rows.g, make::circulant(*rows.g, rows.i, mirrored, line)};
}
constexpr ex neumann(ex q, extent terms, int line = __builtin_LINE()) {
  return {q.g, make::neumann(*q.g, q.i, terms.d, line)};
}
constexpr ex kron(ex a, at b) { return {a.g, make::kron(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex repeat(ex a, extent cols, int line = __builtin_LINE()) {
  return {a.g, make::repeat(*a.g, a.i, cols.d, line)};
}
constexpr ex softmax(at a) { return {a.e.g, make::unary(*a.e.g, op::softmax, a.e.i, a.line)}; }  // of each row
constexpr ex topk_softmax(ex a, extent k, int line = __builtin_LINE()) {
  return {a.g, make::topk_softmax(*a.g, a.i, k.d, line)};
}
constexpr ex reshape(ex a, extent d0, extent d1, extent d2, extent d3, int line = __builtin_LINE()) {
  const node v = *a;
  const dim first = a.g->times(v.d[0], v.d[1]), second = a.g->times(v.d[2], v.d[3]);
  const dim third = a.g->times(d0.d, d1.d), fourth = a.g->times(d2.d, d3.d);
  const id made = make::reshape(*a.g, a.i, d0.d, d1.d, d2.d, d3.d, line);
  a.g->require(requirement::kind::same, a.g->times(first, second), a.g->times(third, fourth), made, line);
  return {a.g, made};
}
constexpr ex reshape(ex a, extent d1, extent d2, extent d3) { return reshape(a, 1, d1, d2, d3); }
constexpr ex reshape(ex a, extent rows, extent cols) { return reshape(a, 1, 1, rows, cols); }
// Axis i of the result is axis p_i of a.
constexpr ex permute(ex a, int p0, int p1, int p2, int p3, int line = __builtin_LINE()) {
  return {a.g, make::permute(*a.g, a.i, p0, p1, p2, p3, line)};
}
// `size` entries of one axis (3: columns, 2: rows), from the one numbered `from` on.
constexpr ex slice(ex a, int axis, extent from, extent size, int line = __builtin_LINE()) {
  return {a.g, make::slice(*a.g, a.i, axis, from.d, size.d, line)};
}
constexpr ex concat(ex a, ex b, int axis = 3, int line = __builtin_LINE()) {
  return {a.g, make::concat(*a.g, a.i, b.i, axis, line)};
}
// A matrix of zeros with the numbers of a column at the places that an index [2, n] of rows and columns lists.
constexpr ex place(ex values, ex index, extent rows, extent cols, int line = __builtin_LINE()) {
  return {values.g, make::place(*values.g, values.i, index.i, rows.d, cols.d, line)};
}
// The numbers of a matrix at such places, as a column.
constexpr ex pick(ex from, ex index, int line = __builtin_LINE()) {
  return {from.g, make::pick_column(*from.g, from.i, index.i, line)};
}
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

// Where a formula declares its leaves. Leaf names are the names of the tensors in PEFT's files. Inside in("q_proj") names
// begin with that path, so that a graph holds many layers.
struct scope {
  builder* g;
  int path = 0;

  constexpr scope in(const char* name) const { return {g, g->path(path, name)}; }
  // A size by name: the number where the type gives one, else whatever the tensors turn out to have.
  constexpr extent size(const char* name, int known = dyn, int nominal = 0) const {
    if (known == dyn) return {g, g->size_named(name, path, nominal)};
    if (known < 0) g->stop({fault::size_is_negative, none_id, 0, name, known});
    return {g, dim{known < 0 ? 1 : known}};
  }
  // How many rows a call brings: one number for the whole graph.
  constexpr extent tokens(int nominal = 4096) const { return {g, g->size_named("tokens", 0, nominal, true)}; }
  constexpr extent triangle(extent b) const { return {g, g->triangle(b.d)}; }
  constexpr ex leaf(op o, leaf_name name, int rank, extent d0, extent d1, extent d2, extent d3) const {
    return {g, g->leaf(o, name.s, path, rank, d0.d, d1.d, d2.d, d3.d, name.line)};
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
  constexpr ex frozen(leaf_name name, extent n) const { return leaf(op::frozen, name, 1, 1, 1, n, 1); }
  constexpr ex frozen(leaf_name name, extent rows, extent cols) const {
    return leaf(op::frozen, name, 2, 1, 1, rows, cols);
  }
  constexpr ex frozen(leaf_name name, extent d1, extent d2, extent d3) const {
    return leaf(op::frozen, name, 3, 1, d1, d2, d3);
  }
  constexpr ex frozen(leaf_name name, extent d0, extent d1, extent d2, extent d3) const {
    return leaf(op::frozen, name, 4, d0, d1, d2, d3);
  }
  // Frozen whole numbers [2, n]: rows and columns of n places.
  constexpr ex index(leaf_name name, extent n) const { return leaf(op::index, name, 2, 1, 1, 2, n); }
  constexpr ex scalar(leaf_name name) const { return leaf(op::scalar, name, 0, 1, 1, 1, 1); }
  constexpr ex constant(double v) const { return {g, g->constant(v)}; }
  constexpr ex number(extent n, int line = __builtin_LINE()) const { return {g, g->number(n.d, line)}; }
  constexpr ex eye(extent n) const { return {g, g->leaf(op::eye, "I", 0, 2, {1}, {1}, n.d, n.d)}; }
};

}  // namespace graft
