// SPDX-License-Identifier: Apache-2.0
// The formula language: ex, extent and scope. A formula is written with operators; evaluating it captures the graph.
//     auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
//     return W + p.scalar("scaling") * (B * A);
// `*` is the matrix product; with a scalar or a number it scales, and with a column [n, 1] on the left it scales the n
// rows. Elementwise products are mul(a, b). Every operator records its source line for error messages.
#pragma once
#include <graft/graph/canonical.h>
#include <graft/graph/rules.h>

namespace graft {

// A size in a formula: a number, or a name that gets its number from the layer type or from the tensors. Sizes can be
// added, subtracted, multiplied and divided:  const extent blocks = W.cols() / 32;
struct extent {
  builder* g = nullptr;
  dim d{};
  constexpr extent(int value) : d{value} {}
  constexpr extent(builder* b, dim size) : g(b), d(size) {}
};
constexpr builder* builder_of(builder* a, builder* b) { return a != nullptr ? a : b; }
constexpr extent operator*(extent a, extent b) {
  builder* g = builder_of(a.g, b.g);
  return g == nullptr ? extent(a.d.v * b.d.v) : extent(g, g->times(a.d, b.d));
}
struct divisor {  // the right operand of / or -, with its source line
  extent e;
  int line;
  constexpr divisor(extent by, int where = __builtin_LINE()) : e(by), line(where) {}
  constexpr divisor(int by, int where = __builtin_LINE()) : e(by), line(where) {}
};
// A quotient must be exact; a remainder is an error that names this line.
constexpr extent operator/(extent a, divisor b) {
  builder* g = builder_of(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v / b.e.d.v) : extent(g, g->over(a.d, b.e.d, b.line));
}

constexpr extent operator+(extent a, extent b) {
  builder* g = builder_of(a.g, b.g);
  return g == nullptr ? extent(a.d.v + b.d.v) : extent(g, g->plus(a.d, b.d));
}
constexpr extent operator-(extent a, divisor b) {
  builder* g = builder_of(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v - b.e.d.v) : extent(g, g->minus(a.d, b.e.d, b.line));
}

// A value in a formula: a copyable handle of a node of the graph that is being captured. It is a matrix [rows,
// columns], or a stack of matrices with two leading sizes. A scope declares tensors, operators and functions combine
// values, and the formula returns one:
//     return W + p.scalar("scaling") * (B * A);
// Nothing is computed here. Sizes that do not fit are errors of compile<> that name the expression and its line.
struct ex {
  builder* g = nullptr;
  id i = none_id;
  constexpr const node& operator*() const { return g->n[i]; }
  // The last two sizes, for declaring other tensors:  p.param("lora_B.weight", W.rows(), r)
  constexpr extent rows() const { return {g, g->n[i].d[2]}; }
  constexpr extent cols() const { return {g, g->n[i].d[3]}; }
};
struct operand {  // an operand with its source line
  ex e;
  int line;
  constexpr operand(ex value, int where = __builtin_LINE()) : e(value), line(where) {}
};

// a * b is the matrix product of each pair of matrices. A scalar operand scales, and a column [n, 1] on the left of a
// matrix with n rows scales its rows. mul(a, row) with a row [1, n] scales columns.
constexpr ex operator*(ex a, operand b) {
  builder& g = *a.g;
  const node &p = *a, &q = *b.e;
  if (is_scalar(p) || is_scalar(q)) return {&g, make_node::mul(g, a.i, b.e.i, b.line)};
  if (p.d[3] == dim{1} && p.d[2] == q.d[2] && q.d[3] != dim{1}) return {&g, make_node::mul(g, a.i, b.e.i, b.line)};
  return {&g, make_node::matmul(g, a.i, b.e.i, false, false, b.line)};
}
// Elementwise operators. A size of 1 is broadcast to the other operand's size; other sizes must be equal.
constexpr ex operator+(ex a, operand b) { return {a.g, make_node::add(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator-(ex a, operand b) { return {a.g, make_node::sub(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator/(ex a, operand b) { return {a.g, make_node::div(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex mul(ex a, operand b) { return {a.g, make_node::mul(*a.g, a.i, b.e.i, b.line)}; }
// A number as an operand acts on every element:  2.0 * sigmoid(g),  1.0 + w,  a / 3.0
constexpr operand same_as(operand like, double s) { return {{like.e.g, like.e.g->constant(s)}, like.line}; }
constexpr ex operator*(double s, operand b) { return same_as(b, s).e * b; }
constexpr ex operator+(double s, operand b) { return same_as(b, s).e + b; }
constexpr ex operator-(double s, operand b) { return same_as(b, s).e - b; }
constexpr ex operator/(double s, operand b) { return same_as(b, s).e / b; }
constexpr ex operator*(operand a, double s) { return s * a; }
constexpr ex operator+(operand a, double s) { return a.e + same_as(a, s); }
constexpr ex operator-(operand a, double s) { return a.e - same_as(a, s); }
constexpr ex operator/(operand a, double s) { return a.e / same_as(a, s); }
constexpr ex operator-(operand a) { return -1.0 * a; }
constexpr ex& operator+=(ex& a, operand b) { return a = a + b; }
constexpr ex& operator-=(ex& a, operand b) { return a = a - b; }
constexpr ex& operator*=(ex& a, operand b) { return a = a * b; }
constexpr ex& operator/=(ex& a, operand b) { return a = a / b; }
// Elementwise maximum and minimum.
constexpr ex max(ex a, operand b) { return {a.g, make_node::pointwise(*a.g, op::maximum, a.i, b.e.i, b.line)}; }
constexpr ex min(ex a, operand b) { return {a.g, make_node::pointwise(*a.g, op::minimum, a.i, b.e.i, b.line)}; }

// The transpose of each matrix.
constexpr ex t(operand a) { return {a.e.g, make_node::transpose(*a.e.g, a.e.i, a.line)}; }
// Elementwise functions.
constexpr ex sqrt(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::sqrt, a.e.i, a.line)}; }
constexpr ex exp(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::exp, a.e.i, a.line)}; }
constexpr ex log(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::log, a.e.i, a.line)}; }
constexpr ex sin(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::sin, a.e.i, a.line)}; }
constexpr ex cos(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::cos, a.e.i, a.line)}; }
constexpr ex erf(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::erf, a.e.i, a.line)}; }
constexpr ex silu(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::silu, a.e.i, a.line)}; }
constexpr ex gelu(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::gelu, a.e.i, a.line)}; }
constexpr ex gelu_tanh(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::gelu_tanh, a.e.i, a.line)}; }
constexpr ex tanh(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::tanh, a.e.i, a.line)}; }
constexpr ex sigmoid(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::sigmoid, a.e.i, a.line)}; }
constexpr ex relu(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::relu, a.e.i, a.line)}; }
// Returns its operand, which the backward pass treats as a constant: no gradient flows through it.
constexpr ex detach(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::detach, a.e.i, a.line)}; }
// row_dot sums each row of a ⊙ b into a column [n, 1]; row_norm is the Euclidean norm of each row, √row_dot(a, a).
constexpr ex row_dot(ex a, operand b) { return {a.g, make_node::row_dot(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex row_norm(operand a) { return sqrt({row_dot(a.e, a), a.line}); }
// The Euclidean norm of each column, a row [1, n].
constexpr ex col_norm(operand a) {
  const ex column = row_norm({t(a), a.line});
  return t({column, a.line});
}
// Sets all entries on and below the diagonal to zero.
constexpr ex strict_upper(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::strict_upper, a.e.i, a.line)}; }
// The inverse of each square matrix.
constexpr ex inverse(operand a) { return {a.e.g, make_node::inverse(*a.e.g, a.e.i, a.line)}; }
// The Q of LAPACK's a = Q R, an orthonormal basis of the columns of a, which has at least as many rows as columns.
constexpr ex orthonormal(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::orthonormal, a.e.i, a.line)}; }
// Skew-symmetric matrices [1, rows, b, b]: row i of `packed` lists the entries of matrix i above its diagonal row by
// row, b (b - 1) / 2 numbers (scope::triangle).
constexpr ex skew(ex packed, extent b, int line = __builtin_LINE()) {
  return {packed.g, make_node::skew(*packed.g, packed.i, b.d, line)};
}
// Circulant matrices, concatenated along the columns: each row of b numbers becomes a b x b matrix whose row i is that
// row shifted cyclically by i to the right, or to the left where mirrored.
constexpr ex circulant(ex rows, bool mirrored = false, int line = __builtin_LINE()) {
  return {rows.g, make_node::circulant(*rows.g, rows.i, mirrored, line)};
}
// The truncated series of the Cayley transform of a skew-symmetric q:  I + 2 q + 2 q² + … + q^(terms-1).
constexpr ex neumann(ex q, extent terms, int line = __builtin_LINE()) {
  return {q.g, make_node::neumann(*q.g, q.i, terms.d, line)};
}
// The Kronecker product a ⊗ b of two matrices.
constexpr ex kron(ex a, operand b) { return {a.g, make_node::kron(*a.g, a.i, b.e.i, b.line)}; }
// Tiles the columns of a cyclically up to `cols` columns.
constexpr ex repeat(ex a, extent cols, int line = __builtin_LINE()) {
  return {a.g, make_node::repeat(*a.g, a.i, cols.d, line)};
}
// The softmax of each row; topk_softmax takes it over the k largest entries of the row and is zero elsewhere.
constexpr ex softmax(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::softmax, a.e.i, a.line)}; }
constexpr ex topk_softmax(ex a, extent k, int line = __builtin_LINE()) {
  return {a.g, make_node::topk_softmax(*a.g, a.i, k.d, line)};
}
// Reinterprets the elements in row-major order with other sizes of equal product.
constexpr ex reshape(ex a, extent d0, extent d1, extent d2, extent d3, int line = __builtin_LINE()) {
  const node v = *a;
  const dim first = a.g->times(v.d[0], v.d[1]), second = a.g->times(v.d[2], v.d[3]);
  const dim third = a.g->times(d0.d, d1.d), fourth = a.g->times(d2.d, d3.d);
  const id made = make_node::reshape(*a.g, a.i, d0.d, d1.d, d2.d, d3.d, line);
  a.g->require(requirement::kind::same, a.g->times(first, second), a.g->times(third, fourth), made, line);
  return {a.g, made};
}
constexpr ex reshape(ex a, extent d1, extent d2, extent d3) { return reshape(a, 1, d1, d2, d3); }
constexpr ex reshape(ex a, extent rows, extent cols) { return reshape(a, 1, 1, rows, cols); }
// Axis i of the result is axis p_i of a.
constexpr ex permute(ex a, int p0, int p1, int p2, int p3, int line = __builtin_LINE()) {
  return {a.g, make_node::permute(*a.g, a.i, p0, p1, p2, p3, line)};
}
// Entries [from, from + size) of one axis (3: columns, 2: rows).
constexpr ex slice(ex a, int axis, extent from, extent size, int line = __builtin_LINE()) {
  return {a.g, make_node::slice(*a.g, a.i, axis, from.d, size.d, line)};
}
// Concatenates a and b along one axis (3: columns, 2: rows); all other sizes must be equal.
constexpr ex concat(ex a, ex b, int axis = 3, int line = __builtin_LINE()) {
  return {a.g, make_node::concat(*a.g, a.i, b.i, axis, line)};
}
// Scatters a column of n values into a zero matrix; the index [2, n] lists the row and the column of each.
constexpr ex scatter_elements(ex values, ex index, extent rows, extent cols, int line = __builtin_LINE()) {
  return {values.g, make_node::scatter_elements(*values.g, values.i, index.i, rows.d, cols.d, line)};
}
// Gathers the entries of a matrix that the index [2, n] lists into a column.
constexpr ex gather_elements(ex from, ex index, int line = __builtin_LINE()) {
  return {from.g, make_node::gather_element_column(*from.g, from.i, index.i, line)};
}
[[deprecated("call scatter_elements")]] constexpr ex place(ex values, ex index, extent rows, extent cols,
                                                           int line = __builtin_LINE()) {
  return scatter_elements(values, index, rows, cols, line);
}
[[deprecated("call gather_elements")]] constexpr ex pick(ex from, ex index, int line = __builtin_LINE()) {
  return gather_elements(from, index, line);
}
// Rotations (OFT, BOFT): unrotate is W Rᵀ and rotate is W R, where activations are rotated as x R. The blocks are
// [m, n, b, b]: m factors, each block-diagonal with n blocks b x b in butterfly order, or [m, 1, b, b] where the blocks
// of a factor are equal.
constexpr ex unrotate(ex w, operand blocks) {
  return {w.g, make_node::rotate(*w.g, w.i, blocks.e.i, true, blocks.line)};
}
constexpr ex rotate(ex w, operand blocks) {
  return {w.g, make_node::rotate(*w.g, w.i, blocks.e.i, false, blocks.line)};
}
// States that the inverse of this matrix is its transpose, which simplifications use.
constexpr ex orthogonal(ex a) {
  a.g->n[a.i].orthogonal = true;
  return a;
}
// A host function outside the language. It runs in eager mode and is a graph break otherwise.
constexpr ex host(const char* name, operand a) {
  node v = a.e.g->shaped(op::host, a.e.i, a.e.i, none_id, none_id, a.line);
  v.name = name;
  return {a.e.g, a.e.g->emit(v)};
}

// A host function whose number of rows depends on the data.
constexpr ex host_rows(const char* name, extent rows, operand a) {
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

// scope declares the tensors and sizes of a formula: trained tensors (param), constant tensors (frozen, index), numbers
// (scalar) and sizes. Names are those of PEFT's files and of layer.set(name, …); two declarations with one name and
// shape are one tensor. in("q_proj") prefixes names with that path, so that a graph can hold many layers.
//     static constexpr ex weight(scope p, ex W) {
//       const extent r = p.size("r", Rank);
//       const ex A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
//       return W + p.scalar("scaling") * (B * A);
//     }
// On the weight [1, experts, out, in] of a mixture of experts a formula is written for one expert: every tensor that
// the scope declares has the expert axis too, and operations keep it.
struct scope {
  builder* g;
  int path = 0;
  dim experts{};  // 1: not of experts

  constexpr scope in(const char* name) const { return {g, g->path(path, name), experts}; }
  // The scope whose tensors all experts share.
  constexpr scope shared() const { return {g, path}; }
  // A size by name: the number that the type states, else the size that the tensors have.
  constexpr extent size(const char* name, int value = dyn, int nominal = 0) const {
    if (value == dyn) return {g, g->size_named(name, path, nominal)};
    if (value < 0) g->stop({formula_error::size_is_negative, none_id, 0, name, value});
    return {g, dim{value < 0 ? 1 : value}};
  }
  // The number of rows of a call, which is one size for the whole graph.
  constexpr extent tokens(int nominal = 4096) const { return {g, g->size_named("tokens", 0, nominal, true)}; }
  // b (b - 1) / 2, the number of entries above the diagonal of a b x b matrix, which skew() reads as columns.
  constexpr extent triangle(extent b) const { return {g, g->triangle(b.d)}; }
  constexpr ex leaf(op o, leaf_name name, int rank, extent d0, extent d1, extent d2, extent d3) const {
    if (experts == dim{1} || o == op::scalar)
      return {g, g->leaf(o, name.s, path, rank, d0.d, d1.d, d2.d, d3.d, name.line)};
    if (rank == 2) return {g, g->leaf(o, name.s, path, 3, {1}, experts, d2.d, d3.d, name.line)};
    if (rank != 1) g->stop({formula_error::not_on_experts, none_id, name.line, name.s});
    const id columns = g->leaf(o, name.s, path, 2, {1}, {1}, experts, d2.d, name.line);
    return {g, make_node::reshape(*g, columns, {1}, experts, d2.d, d3.d, name.line)};
  }
  // A trained tensor, whose gradient backward() computes. One size makes a column; several are row-major, and the last
  // two are rows and columns.
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
  // A tensor of the adapter that is not trained, such as VeRA's projections.
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
  // Constant integers [2, n]: the rows and columns of n matrix entries.
  constexpr ex index(leaf_name name, extent n) const { return shared().leaf(op::index, name, 2, 1, 1, 2, n); }
  // A number that the user sets with layer.set(name, 2.0).
  constexpr ex scalar(leaf_name name) const { return leaf(op::scalar, name, 0, 1, 1, 1, 1); }
  // A literal number, a size as a number, and the identity matrix.
  constexpr ex constant(double v) const { return {g, g->constant(v)}; }
  constexpr ex number(extent n, int line = __builtin_LINE()) const { return {g, g->number(n.d, line)}; }
  constexpr ex eye(extent n) const { return {g, g->leaf(op::eye, "I", 0, 2, {1}, {1}, n.d, n.d)}; }
};

}  // namespace graft
