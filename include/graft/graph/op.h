// SPDX-License-Identifier: Apache-2.0
// The op table: every operation a graph may hold, one row each, and every fact about it a column. A new op is a row here
// and a `case` in each pass that computes it; the switches have no default, so the compiler names the pass that forgot.
//
// Tensors have four sizes, the last two are rows and columns, the first two count independent matrices.
#pragma once
namespace graft {

// clang-format off
enum class op : unsigned char {
  // leaves
  input, ids, base, frozen, index, param, scalar, kept, constant, number, eye, zero,
  // element by element; an operand of size 1 along an axis is repeated
  add, sub, mul, div, minimum, maximum,
  sqrt, exp, log, sin, cos, tanh, erf, sigmoid, relu, silu, gelu, gelu_tanh, step, detach,
  // products and reductions
  matmul, row_dot, sum_to,
  // rearrangements
  transpose, permute, reshape, slice, pad, concat, repeat, fold, upper, skew, unskew,
  // small dense algebra on each matrix
  inverse, neumann, neumann_grad,
  // rotations of the last axis by block-diagonal butterfly factors
  rotate, rotate_grad,
  // Kronecker products: of matrices, and of each pair of rows
  kron, row_kron,
  // look-up of rows and its adjoint; values put at places of a zero matrix and its adjoint
  gather, scatter, place, pick,
  // row by row
  softmax, topk_softmax, softmax_grad, normalize, normalize_grad,
  // convolution as a product: image to patches, and its adjoint
  patches, unpatch,
  // of models: row by row; every row on a span of rows, of its call or of a state that it is written to first
  rope, dropout, cross_entropy, cross_entropy_grad, attention, attention_grad, cached_attention,
  // what came later, where no other's number changes: squares of moved copies of rows, and their sums; an orthonormal basis
  // of the columns of each matrix
  circulant, orthonormal,
  // a leaf that calls write to
  state,
  // over the processes that share the work: what each has becomes what all have together
  rank_sum, rank_max,
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
  attention,
  exchange,
  opaque
};

// When a value is known. Load-time values depend on frozen tensors only, parameter-time values change with the
// parameters (once per load in inference, once per step in training), data-time values with every call.
enum class stage : unsigned char { load, parameter, data };

// Where the axes of the operands are found again in the result: what may be computed a few rows at a time, and what
// needs all rows at once. graph/axes.h reads it.
enum class flow : unsigned char {
  none,      // a leaf
  each,      // every axis stays; nothing mixes
  last,      // the last axis mixes within itself, the others stay
  first,     // the same, and only the first operand has rows: the others are read whole
  outer,     // the same for the first and the third operand
  matrix,    // rows and columns mix, the first two axes stay
  product,   // a matrix product
  swap,      // rows and columns change places
  reorder,   // the four axes in another order
  regroup,   // the same elements under other sizes: the outermost axis stays outermost
  along,     // one axis, a whole-number argument, mixes; the others stay
  spread,    // rows become matrices
  collect,   // matrices become rows
  look_up,   // one row for every id
  labelled,  // the last axis of the first operand mixes; the second has one id for every row
  unfold,    // an image becomes a matrix of patches
  all,       // everything mixes
  // these add into their place, which must hold zeros or the sum so far
  reduce,      // axes that the result does not have are summed
  add_rows,    // rows are summed by id
  add_blocks,  // rows are summed into blocks
  add_places,  // numbers are put where an index says
  refold,      // patches become an image
};

// What summands of an operand, one on each of several ranks, give when each is worked on alone: summands of the result,
// or nothing, so that they have to be added up first. derive/shard.h reads it.
enum class linearity : unsigned char {
  no,
  in_all,    // where all operands are summands
  in_each,   // where one of them is
  in_first,  // where the first one is
};
// What parts of an axis that mixes give, where each is a whole number of blocks: parts of the result, or summands. sums:
// summands wherever the axis is cut.
enum class in_parts : unsigned char { no, parts, summands, sums };

// Where the value of a leaf comes from: a caller brings numbers, integers or one number by name; the rest is made.
enum class source : unsigned char { nobody, tensor, integers, scalar };

struct op_row {
  const char* name = "";   // as explain() and the errors print it
  const char* infix = "";  // printed between two operands where not empty
  op_class kind = op_class::leaf;
  signed char arity = 0;
  flow axes = flow::none;
  stage known = stage::load;     // leaves: when; other values are known when their operands are
  source from = source::nobody;  // leaves
  linearity sums = linearity::no;
  in_parts cut = in_parts::no;
  bool reads_memory = false;  // its operands lie in memory on every target, whatever else its launch computes
};

namespace detail {
constexpr op_row also(op_row r, linearity sums, in_parts cut = in_parts::no) {
  r.sums = sums, r.cut = cut;
  return r;
}
constexpr op_row from_memory(op_row r) {
  r.reads_memory = true;
  return r;
}
constexpr op_row row_of(op o) {
  using enum op_class;
  using enum stage;
  switch (o) {
    case op::input: return {"input", "", leaf, 0, flow::none, data, source::tensor};
    case op::ids: return {"ids", "", leaf, 0, flow::none, data, source::integers};
    case op::state: return {"state", "", leaf, 0, flow::none, data, source::tensor};
    case op::base: return {"base", "", leaf, 0, flow::none, load, source::tensor};
    case op::frozen: return {"frozen", "", leaf, 0, flow::none, load, source::tensor};
    case op::index: return {"index", "", leaf, 0, flow::none, load, source::integers};
    case op::param: return {"param", "", leaf, 0, flow::none, parameter, source::tensor};
    case op::scalar: return {"scalar", "", leaf, 0, flow::none, parameter, source::scalar};
    case op::constant: return {"constant", "", leaf, 0, flow::none, load};
    case op::number: return {"number", "", leaf, 0, flow::none, load};
    case op::eye: return {"I", "", leaf, 0, flow::none, load};
    case op::zero: return {"0", "", leaf, 0, flow::none, load};
    case op::kept: return {"kept", "", leaf, 0, flow::none, parameter, source::tensor};
    case op::add: return also({"add", " + ", pointwise, 2, flow::each}, linearity::in_all);
    case op::sub: return also({"sub", " - ", pointwise, 2, flow::each}, linearity::in_all);
    case op::mul: return also({"mul", " * ", pointwise, 2, flow::each}, linearity::in_each);
    case op::div: return also({"div", " / ", pointwise, 2, flow::each}, linearity::in_first);
    case op::minimum: return {"min", "", pointwise, 2, flow::each};
    case op::maximum: return {"max", "", pointwise, 2, flow::each};
    case op::sqrt: return {"sqrt", "", pointwise, 1, flow::each};
    case op::exp: return {"exp", "", pointwise, 1, flow::each};
    case op::log: return {"log", "", pointwise, 1, flow::each};
    case op::sin: return {"sin", "", pointwise, 1, flow::each};
    case op::cos: return {"cos", "", pointwise, 1, flow::each};
    case op::tanh: return {"tanh", "", pointwise, 1, flow::each};
    case op::erf: return {"erf", "", pointwise, 1, flow::each};
    case op::sigmoid: return {"sigmoid", "", pointwise, 1, flow::each};
    case op::relu: return {"relu", "", pointwise, 1, flow::each};
    case op::silu: return {"silu", "", pointwise, 1, flow::each};
    case op::gelu: return {"gelu", "", pointwise, 1, flow::each};
    case op::gelu_tanh: return {"gelu_tanh", "", pointwise, 1, flow::each};
    case op::step: return {"step", "", pointwise, 1, flow::each};
    case op::detach: return also({"const", "", pointwise, 1, flow::each}, linearity::in_all);
    case op::matmul: return from_memory(also({"matmul", " @ ", product, 2, flow::product}, linearity::in_each));
    case op::row_dot: return also({"row_dot", "", reduction, 2, flow::last}, linearity::in_each, in_parts::sums);
    case op::sum_to: return also({"sum_to", "", reduction, 1, flow::reduce}, linearity::in_all);
    case op::transpose: return also({"transpose", "", layout, 1, flow::swap}, linearity::in_all);
    case op::permute: return also({"permute", "", layout, 1, flow::reorder}, linearity::in_all);
    case op::reshape: return also({"reshape", "", layout, 1, flow::regroup}, linearity::in_all);
    case op::slice: return also({"slice", "", layout, 1, flow::along}, linearity::in_all);
    case op::pad: return also({"pad", "", layout, 1, flow::along}, linearity::in_all);
    case op::concat: return also({"concat", "", layout, 2, flow::along}, linearity::in_all);
    case op::repeat: return also({"repeat", "", layout, 1, flow::last}, linearity::in_all);
    case op::fold: return also({"fold", "", layout, 1, flow::last}, linearity::in_all, in_parts::summands);
    case op::upper: return also({"strict_upper", "", layout, 1, flow::matrix}, linearity::in_all);
    case op::skew: return also({"skew", "", layout, 1, flow::spread}, linearity::in_all);
    case op::unskew: return also({"unskew", "", layout, 1, flow::collect}, linearity::in_all);
    case op::circulant: return also({"circulant", "", layout, 1, flow::matrix}, linearity::in_all);
    case op::inverse: return {"inverse", "", algebra, 1, flow::matrix};
    case op::orthonormal: return {"orthonormal", "", algebra, 1, flow::matrix};
    case op::neumann: return {"neumann", "", algebra, 1, flow::matrix};
    case op::neumann_grad: return {"neumann_grad", "", algebra, 2, flow::matrix};
    case op::rotate:
      return from_memory(also({"rotate", "", rotation, 2, flow::first}, linearity::in_first, in_parts::parts));
    case op::rotate_grad:
      return also({"rotate_grad", "", rotation, 3, flow::add_blocks}, linearity::no, in_parts::parts);
    case op::kron: return also({"kron", "", algebra, 2, flow::all}, linearity::in_each);
    case op::row_kron: return also({"row_kron", "", algebra, 2, flow::last}, linearity::in_each);
    case op::gather: return also({"gather", "", lookup, 2, flow::look_up}, linearity::in_first);
    case op::scatter: return also({"scatter", "", lookup, 2, flow::add_rows}, linearity::in_first);
    case op::place: return also({"place", "", lookup, 2, flow::add_places}, linearity::in_first);
    case op::pick: return also({"pick", "", lookup, 2, flow::all}, linearity::in_first);
    case op::softmax: return {"softmax", "", rowwise, 1, flow::last};
    case op::topk_softmax: return {"topk_softmax", "", rowwise, 1, flow::last};
    case op::softmax_grad: return {"softmax_grad", "", rowwise, 2, flow::last};
    case op::normalize: return from_memory({"normalize", "", rowwise, 2, flow::first});
    case op::normalize_grad: return {"normalize_grad", "", rowwise, 3, flow::outer};
    case op::rope: return also({"rope", "", rowwise, 2, flow::last}, linearity::in_first, in_parts::parts);
    case op::dropout: return {"dropout", "", pointwise, 3, flow::first};
    case op::cross_entropy:
      return also({"cross_entropy", "", rowwise, 2, flow::labelled}, linearity::no, in_parts::summands);
    case op::cross_entropy_grad:
      return also({"cross_entropy_grad", "", rowwise, 3, flow::labelled}, linearity::no, in_parts::parts);
    case op::attention: return also({"attention", "", attention, 2, flow::all}, linearity::no, in_parts::parts);
    case op::attention_grad:
      return also({"attention_grad", "", attention, 3, flow::all}, linearity::no, in_parts::parts);
    case op::cached_attention:
      return also({"cached_attention", "", attention, 3, flow::all}, linearity::no, in_parts::parts);
    case op::patches: return also({"patches", "", layout, 1, flow::unfold}, linearity::in_all);
    case op::unpatch: return also({"unpatch", "", layout, 1, flow::refold}, linearity::in_all);
    case op::rank_sum: return {"sum_over_ranks", "", exchange, 1, flow::all};
    case op::rank_max: return {"largest_over_ranks", "", exchange, 1, flow::all};
    case op::host: return {"host", "", opaque, 1, flow::all};
  }
  return {"?", "", opaque, 0, flow::all};
}
struct op_rows {
  op_row of[static_cast<int>(op::host) + 1]{};
  constexpr op_rows() {
    for (int i = 0; i <= static_cast<int>(op::host); ++i) of[i] = row_of(static_cast<op>(i));
  }
};
inline constexpr op_rows table{};  // passes ask often: finding a case anew costs a constant evaluation many steps
}  // namespace detail

constexpr const op_row& row(op o) { return detail::table.of[static_cast<int>(o)]; }
constexpr bool is_leaf(op o) { return row(o).kind == op_class::leaf; }
constexpr bool is_pointwise(op o) { return row(o).kind == op_class::pointwise; }
constexpr bool is_named(op o) { return row(o).from != source::nobody; }
constexpr bool adds_up(op o) { return row(o).axes >= flow::reduce; }

}  // namespace graft
