// SPDX-License-Identifier: Apache-2.0
// The op table: every operation a graph may hold, one row each. A new op is a row here and a `case` in each pass;
// the switches have no default, so the compiler names the pass that forgot it.
//
// Tensors have four sizes, the last two are rows and columns, the first two count independent matrices.
#pragma once
namespace graft {

// clang-format off
enum class op : unsigned char {
  // leaves
  input, ids, base, frozen, param, scalar, constant, eye, zero, kept,
  // element by element; an operand of size 1 along an axis is repeated
  add, sub, mul, div, minimum, sqrt, exp, tanh, sigmoid, relu, step, detach,
  // products and reductions
  matmul, row_dot, sum_to,
  // rearrangements
  transpose, reshape, swap_inner, tile, fold, upper, skew, unskew,
  // small dense algebra on each matrix
  inverse, neumann, neumann_grad,
  // rotations of the last axis by block-diagonal butterfly factors
  rotate, rotate_grad,
  // Kronecker products: of matrices, and of each pair of rows
  kron, row_kron,
  // look-up of rows, and its adjoint
  gather, scatter,
  // row by row
  topk_softmax, softmax_grad, normalize, normalize_grad,
  // convolution as a product: image to patches, and its adjoint
  patches, unpatch,
  // a callable the compiler cannot see into
  host,
};
// clang-format on

enum class op_class : unsigned char {
  leaf,
  pointwise,
  product,
  reduction,
  layout,
  algebra,
  rotation,
  lookup,
  rowwise,
  opaque
};

struct op_row {
  const char* name;   // as explain() and the errors print it
  const char* infix;  // printed between two operands where not empty
  op_class kind;
  int arity;
};

constexpr op_row row(op o) {
  using enum op_class;
  switch (o) {
    case op::input: return {"input", "", leaf, 0};
    case op::ids: return {"ids", "", leaf, 0};
    case op::base: return {"base", "", leaf, 0};
    case op::frozen: return {"frozen", "", leaf, 0};
    case op::param: return {"param", "", leaf, 0};
    case op::scalar: return {"scalar", "", leaf, 0};
    case op::constant: return {"constant", "", leaf, 0};
    case op::eye: return {"I", "", leaf, 0};
    case op::zero: return {"0", "", leaf, 0};
    case op::kept: return {"kept", "", leaf, 0};
    case op::add: return {"add", " + ", pointwise, 2};
    case op::sub: return {"sub", " - ", pointwise, 2};
    case op::mul: return {"mul", " * ", pointwise, 2};
    case op::div: return {"div", " / ", pointwise, 2};
    case op::minimum: return {"min", "", pointwise, 2};
    case op::sqrt: return {"sqrt", "", pointwise, 1};
    case op::exp: return {"exp", "", pointwise, 1};
    case op::tanh: return {"tanh", "", pointwise, 1};
    case op::sigmoid: return {"sigmoid", "", pointwise, 1};
    case op::relu: return {"relu", "", pointwise, 1};
    case op::step: return {"step", "", pointwise, 1};
    case op::detach: return {"detach", "", pointwise, 1};
    case op::matmul: return {"matmul", " @ ", product, 2};
    case op::row_dot: return {"row_dot", "", reduction, 2};
    case op::sum_to: return {"sum_to", "", reduction, 1};
    case op::transpose: return {"transpose", "", layout, 1};
    case op::reshape: return {"reshape", "", layout, 1};
    case op::swap_inner: return {"swap_inner", "", layout, 1};
    case op::tile: return {"tile", "", layout, 1};
    case op::fold: return {"fold", "", layout, 1};
    case op::upper: return {"strict_upper", "", layout, 1};
    case op::skew: return {"skew", "", layout, 1};
    case op::unskew: return {"unskew", "", layout, 1};
    case op::inverse: return {"inverse", "", algebra, 1};
    case op::neumann: return {"neumann", "", algebra, 1};
    case op::neumann_grad: return {"neumann_grad", "", algebra, 2};
    case op::rotate: return {"rotate", "", rotation, 2};
    case op::rotate_grad: return {"rotate_grad", "", rotation, 3};
    case op::kron: return {"kron", "", algebra, 2};
    case op::row_kron: return {"row_kron", "", algebra, 2};
    case op::gather: return {"gather", "", lookup, 2};
    case op::scatter: return {"scatter", "", lookup, 2};
    case op::topk_softmax: return {"topk_softmax", "", rowwise, 1};
    case op::softmax_grad: return {"softmax_grad", "", rowwise, 2};
    case op::normalize: return {"normalize", "", rowwise, 2};
    case op::normalize_grad: return {"normalize_grad", "", rowwise, 3};
    case op::patches: return {"patches", "", layout, 1};
    case op::unpatch: return {"unpatch", "", layout, 1};
    case op::host: return {"host", "", opaque, 1};
  }
  return {"?", "", opaque, 0};
}

constexpr bool is_leaf(op o) { return row(o).kind == op_class::leaf; }
constexpr bool is_pointwise(op o) { return row(o).kind == op_class::pointwise; }

}  // namespace graft
