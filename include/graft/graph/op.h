// SPDX-License-Identifier: Apache-2.0
// The op table: one row per operation of a graph, one column per fact about it. A new op needs a row here and a `case`
// in each pass that computes it; the switches have no default, so that the compiler names every pass without it.
//
// Tensors have four sizes: the last two are rows and columns, the first two count independent matrices.
#pragma once
namespace graft {

// clang-format off
enum class op : unsigned char {
  // leaves
  input, ids, base, frozen, index, param, scalar, saved, constant, number, eye, zero,
  // elementwise; an operand of size 1 along an axis is broadcast
  add, sub, mul, div, minimum, maximum,
  sqrt, exp, log, sin, cos, tanh, erf, sigmoid, relu, silu, gelu, gelu_tanh, heaviside, detach,
  // products and reductions
  matmul, row_dot, sum_to,
  // rearrangements
  transpose, permute, reshape, slice, pad, concat, repeat, fold_columns, strict_upper, skew, unskew,
  // small dense algebra on each matrix
  inverse, neumann, neumann_grad,
  // rotations of the last axis by block-diagonal butterfly factors
  rotate, rotate_grad,
  // Kronecker products: of matrices, and of each pair of rows
  kron, row_kron,
  // look-up of rows and its adjoint; scatter of values into a zero matrix and its adjoint
  gather, scatter, scatter_elements, gather_elements,
  // row-wise functions
  softmax, topk_softmax, softmax_grad, normalize, normalize_grad,
  // convolution as a GEMM: im2col and its adjoint
  im2col, col2im,
  // of models: RoPE, dropout, loss; attention over rows of the call, or over a KV cache that rows are written to first
  rope, dropout, cross_entropy, cross_entropy_grad, attention, attention_grad, cached_attention,
  // circulant matrices of rows, and their adjoint; an orthonormal basis of the columns of each matrix. New ops are
  // added here, because plan keys contain the numbers of the ops above
  circulant, orthonormal,
  // mixture of experts: which rows each expert has; rows in that order, and their adjoint; products of each expert's
  // rows with its own matrix, and the gradient of the matrices
  route, dispatch, combine, grouped_matmul, grouped_wgrad,
  // a leaf that calls write to, such as the KV cache
  state,
  // all-reduce over the ranks
  all_reduce_sum, all_reduce_max,
  // a host function, which no pass can look into
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
  collective,
  opaque
};

// When a value is computed: load (it depends on frozen tensors only), parameter (it changes with the parameters, once
// per step in training), or data (the call stage: it changes with every call).
enum class stage : unsigned char { load, parameter, call };

// How the axes of the operands map to axes of the result. It decides what can be computed in chunks of rows and what
// needs all rows at once; graph/axes.h evaluates it.
enum class axis_flow : unsigned char {
  none,               // a leaf
  elementwise,        // every axis stays, and nothing mixes
  mix_last,           // the last axis mixes within itself, the others stay
  mix_last_of_first,  // as `mix_last`, but only the first operand has rows; the others are read whole
  mix_last_of_two,    // as `mix_last_of_first`, but the first and the third operand have rows
  mix_matrix,         // rows and columns mix, the first two axes stay
  product,            // a matrix product
  transpose,          // rows and columns are swapped
  permute,            // the four axes in another order
  reshape,            // the outermost axis stays outermost
  mix_axis,           // the axis that k[0] names mixes; the others stay
  row_to_matrix,      // rows become matrices
  matrix_to_row,      // matrices become rows
  gather,             // one row per id
  row_labels,         // the last axis of the first operand mixes; the second has one id per row
  im2col,             // an image becomes a matrix of patches
  routed,             // rows of tokens, or rows in the order of the experts that the tokens of a chunk choose
  all,                // everything mixes
  // the following ones accumulate into their result, which must hold zeros or the sum of earlier chunks
  reduce,           // axes that the result does not have are summed
  scatter_add,      // rows are summed by id
  sum_into_blocks,  // rows are summed into blocks
  scatter_values,   // values are scattered by an index
  col2im,           // patches become an image
  routed_sum,       // as `routed`; rows of an expert, or those of the experts of a token, are summed
};

// Which operands may be partial sums, one per rank, so that the result is a partial sum too. Any other operand needs
// an all-reduce first. derive/shard.h reads it.
enum class linearity : unsigned char {
  no,
  in_all,    // if all operands are partial sums
  in_each,   // if exactly one operand is
  in_first,  // if the first operand is
};
// The result of an op on shards of an axis that mixes, where each shard is a whole number of blocks: shards of the
// result, or partial sums of it. With `sums` the result is a partial sum wherever the axis is cut.
enum class axis_split : unsigned char { no, parts, summands, sums };

// What a caller binds to a leaf by name: a tensor, integers or one number; nobody: the library makes the value.
enum class source : unsigned char { generated, tensor, integers, scalar };

struct op_traits {
  const char* name = "";   // as explain() and the errors print it
  const char* infix = "";  // printed between the two operands if not empty
  op_class kind = op_class::leaf;
  signed char arity = 0;
  axis_flow axes = axis_flow::none;
  stage known_at = stage::load;     // stage of leaves; other values have the latest stage of their operands
  source from = source::generated;  // leaves
  linearity linear_in = linearity::no;
  axis_split sharding = axis_split::no;
  bool reads_memory = false;  // operands must be stored in memory on every target
};

namespace detail {
constexpr op_traits with_rules(op_traits r, linearity linear_in, axis_split sharding = axis_split::no) {
  r.linear_in = linear_in, r.sharding = sharding;
  return r;
}
constexpr op_traits reading_memory(op_traits r) {
  r.reads_memory = true;
  return r;
}
constexpr op_traits list_traits(op o) {
  using enum op_class;
  using enum stage;
  switch (o) {
    case op::input: return {"input", "", leaf, 0, axis_flow::none, call, source::tensor};
    case op::ids: return {"ids", "", leaf, 0, axis_flow::none, call, source::integers};
    case op::state: return {"state", "", leaf, 0, axis_flow::none, call, source::tensor};
    case op::base: return {"base", "", leaf, 0, axis_flow::none, load, source::tensor};
    case op::frozen: return {"frozen", "", leaf, 0, axis_flow::none, load, source::tensor};
    case op::index: return {"index", "", leaf, 0, axis_flow::none, load, source::integers};
    case op::param: return {"param", "", leaf, 0, axis_flow::none, parameter, source::tensor};
    case op::scalar: return {"scalar", "", leaf, 0, axis_flow::none, parameter, source::scalar};
    case op::constant: return {"constant", "", leaf, 0, axis_flow::none, load};
    case op::number: return {"number", "", leaf, 0, axis_flow::none, load};
    case op::eye: return {"I", "", leaf, 0, axis_flow::none, load};
    case op::zero: return {"0", "", leaf, 0, axis_flow::none, load};
    case op::saved: return {"saved", "", leaf, 0, axis_flow::none, parameter, source::tensor};
    case op::add: return with_rules({"add", " + ", pointwise, 2, axis_flow::elementwise}, linearity::in_all);
    case op::sub: return with_rules({"sub", " - ", pointwise, 2, axis_flow::elementwise}, linearity::in_all);
    case op::mul: return with_rules({"mul", " * ", pointwise, 2, axis_flow::elementwise}, linearity::in_each);
    case op::div: return with_rules({"div", " / ", pointwise, 2, axis_flow::elementwise}, linearity::in_first);
    case op::minimum: return {"min", "", pointwise, 2, axis_flow::elementwise};
    case op::maximum: return {"max", "", pointwise, 2, axis_flow::elementwise};
    case op::sqrt: return {"sqrt", "", pointwise, 1, axis_flow::elementwise};
    case op::exp: return {"exp", "", pointwise, 1, axis_flow::elementwise};
    case op::log: return {"log", "", pointwise, 1, axis_flow::elementwise};
    case op::sin: return {"sin", "", pointwise, 1, axis_flow::elementwise};
    case op::cos: return {"cos", "", pointwise, 1, axis_flow::elementwise};
    case op::tanh: return {"tanh", "", pointwise, 1, axis_flow::elementwise};
    case op::erf: return {"erf", "", pointwise, 1, axis_flow::elementwise};
    case op::sigmoid: return {"sigmoid", "", pointwise, 1, axis_flow::elementwise};
    case op::relu: return {"relu", "", pointwise, 1, axis_flow::elementwise};
    case op::silu: return {"silu", "", pointwise, 1, axis_flow::elementwise};
    case op::gelu: return {"gelu", "", pointwise, 1, axis_flow::elementwise};
    case op::gelu_tanh: return {"gelu_tanh", "", pointwise, 1, axis_flow::elementwise};
    case op::heaviside: return {"heaviside", "", pointwise, 1, axis_flow::elementwise};
    case op::detach: return with_rules({"const", "", pointwise, 1, axis_flow::elementwise}, linearity::in_all);
    case op::matmul:
      return reading_memory(with_rules({"matmul", " @ ", product, 2, axis_flow::product}, linearity::in_each));
    case op::row_dot:
      return with_rules({"row_dot", "", reduction, 2, axis_flow::mix_last}, linearity::in_each, axis_split::sums);
    case op::sum_to: return with_rules({"sum_to", "", reduction, 1, axis_flow::reduce}, linearity::in_all);
    case op::transpose: return with_rules({"transpose", "", layout, 1, axis_flow::transpose}, linearity::in_all);
    case op::permute: return with_rules({"permute", "", layout, 1, axis_flow::permute}, linearity::in_all);
    case op::reshape: return with_rules({"reshape", "", layout, 1, axis_flow::reshape}, linearity::in_all);
    case op::slice: return with_rules({"slice", "", layout, 1, axis_flow::mix_axis}, linearity::in_all);
    case op::pad: return with_rules({"pad", "", layout, 1, axis_flow::mix_axis}, linearity::in_all);
    case op::concat: return with_rules({"concat", "", layout, 2, axis_flow::mix_axis}, linearity::in_all);
    case op::repeat: return with_rules({"repeat", "", layout, 1, axis_flow::mix_last}, linearity::in_all);
    case op::fold_columns:
      return with_rules({"fold_columns", "", layout, 1, axis_flow::mix_last}, linearity::in_all, axis_split::summands);
    case op::strict_upper: return with_rules({"strict_upper", "", layout, 1, axis_flow::mix_matrix}, linearity::in_all);
    case op::skew: return with_rules({"skew", "", layout, 1, axis_flow::row_to_matrix}, linearity::in_all);
    case op::unskew: return with_rules({"unskew", "", layout, 1, axis_flow::matrix_to_row}, linearity::in_all);
    case op::circulant: return with_rules({"circulant", "", layout, 1, axis_flow::mix_matrix}, linearity::in_all);
    case op::inverse: return {"inverse", "", algebra, 1, axis_flow::mix_matrix};
    case op::orthonormal: return {"orthonormal", "", algebra, 1, axis_flow::mix_matrix};
    case op::neumann: return {"neumann", "", algebra, 1, axis_flow::mix_matrix};
    case op::neumann_grad: return {"neumann_grad", "", algebra, 2, axis_flow::mix_matrix};
    case op::rotate:
      return reading_memory(with_rules({"rotate", "", rotation, 2, axis_flow::mix_last_of_first}, linearity::in_first,
                                       axis_split::parts));
    case op::rotate_grad:
      return with_rules({"rotate_grad", "", rotation, 3, axis_flow::sum_into_blocks}, linearity::no, axis_split::parts);
    case op::kron: return with_rules({"kron", "", algebra, 2, axis_flow::all}, linearity::in_each);
    case op::row_kron: return with_rules({"row_kron", "", algebra, 2, axis_flow::mix_last}, linearity::in_each);
    case op::gather: return with_rules({"gather", "", lookup, 2, axis_flow::gather}, linearity::in_first);
    case op::scatter: return with_rules({"scatter", "", lookup, 2, axis_flow::scatter_add}, linearity::in_first);
    case op::scatter_elements:
      return with_rules({"scatter_elements", "", lookup, 2, axis_flow::scatter_values}, linearity::in_first);
    case op::gather_elements:
      return with_rules({"gather_elements", "", lookup, 2, axis_flow::all}, linearity::in_first);
    case op::softmax: return {"softmax", "", rowwise, 1, axis_flow::mix_last};
    case op::topk_softmax: return {"topk_softmax", "", rowwise, 1, axis_flow::mix_last};
    case op::softmax_grad: return {"softmax_grad", "", rowwise, 2, axis_flow::mix_last};
    case op::normalize: return reading_memory({"normalize", "", rowwise, 2, axis_flow::mix_last_of_first});
    case op::normalize_grad: return {"normalize_grad", "", rowwise, 3, axis_flow::mix_last_of_two};
    case op::rope:
      return with_rules({"rope", "", rowwise, 2, axis_flow::mix_last}, linearity::in_first, axis_split::parts);
    case op::dropout: return {"dropout", "", pointwise, 3, axis_flow::mix_last_of_first};
    case op::cross_entropy:
      return with_rules({"cross_entropy", "", rowwise, 2, axis_flow::row_labels}, linearity::no, axis_split::summands);
    case op::cross_entropy_grad:
      return with_rules({"cross_entropy_grad", "", rowwise, 3, axis_flow::row_labels}, linearity::no,
                        axis_split::parts);
    case op::attention:
      return with_rules({"attention", "", attention, 2, axis_flow::all}, linearity::no, axis_split::parts);
    case op::attention_grad:
      return with_rules({"attention_grad", "", attention, 3, axis_flow::all}, linearity::no, axis_split::parts);
    case op::cached_attention:
      return with_rules({"cached_attention", "", attention, 3, axis_flow::all}, linearity::no, axis_split::parts);
    case op::route: return {"route", "", lookup, 1, axis_flow::routed};
    case op::dispatch: return {"dispatch", "", lookup, 2, axis_flow::routed};
    case op::combine: return {"combine", "", lookup, 2, axis_flow::routed_sum};
    case op::grouped_matmul: return reading_memory({"grouped_matmul", "", product, 3, axis_flow::routed});
    case op::grouped_wgrad: return reading_memory({"grouped_wgrad", "", product, 3, axis_flow::routed_sum});
    case op::im2col: return with_rules({"im2col", "", layout, 1, axis_flow::im2col}, linearity::in_all);
    case op::col2im: return with_rules({"col2im", "", layout, 1, axis_flow::col2im}, linearity::in_all);
    case op::all_reduce_sum: return {"all_reduce_sum", "", collective, 1, axis_flow::all};
    case op::all_reduce_max: return {"all_reduce_max", "", collective, 1, axis_flow::all};
    case op::host: return {"host", "", opaque, 1, axis_flow::all};
  }
  return {"?", "", opaque, 0, axis_flow::all};
}
struct op_rows {
  op_traits of[static_cast<int>(op::host) + 1]{};
  constexpr op_rows() {
    for (int i = 0; i <= static_cast<int>(op::host); ++i) of[i] = list_traits(static_cast<op>(i));
  }
};
inline constexpr op_rows table{};  // a table look-up costs constant evaluation fewer steps than the switch
}  // namespace detail

constexpr const op_traits& traits_of(op o) { return detail::table.of[static_cast<int>(o)]; }
constexpr bool is_leaf(op o) { return traits_of(o).kind == op_class::leaf; }
constexpr bool is_pointwise(op o) { return traits_of(o).kind == op_class::pointwise; }
constexpr bool is_named(op o) { return traits_of(o).from != source::generated; }
constexpr bool is_routed(op o) {
  return traits_of(o).axes == axis_flow::routed || traits_of(o).axes == axis_flow::routed_sum;
}
constexpr bool accumulates_result(op o) { return traits_of(o).axes >= axis_flow::reduce; }

}  // namespace graft
