// SPDX-License-Identifier: Apache-2.0
// Where each axis of each operand goes in the result, for every operation of the table.
#include <graft/graph/axes.h>
#include <graft/graph/formula.h>
#include <graft/graph/rules_experts.h>
#include <graft/graph/rules_model.h>

#include <map>
#include <vector>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr int M = mixed_axis, S = summed_axis;

// What becomes of the four axes of one operand.
struct axis_maps {
  int to[4];
};
struct example {
  id (*make)(builder&, scope);
  std::vector<axis_maps> operands;
};
constexpr axis_maps all_stay{{0, 1, 2, 3}}, last_mixes{{0, 1, 2, M}}, rows_mix{{0, 1, M, M}}, all_mixed{{M, M, M, M}},
    rows_stay{{M, M, 2, M}}, rows_sum{{M, M, S, M}};

id a(scope p) { return p.param("a", 2, 3, 4, 5).i; }
id b(scope p) { return p.param("b", 2, 3, 4, 5).i; }
id square(scope p) { return p.param("q", 2, 3, 4, 4).i; }
id matrix(scope p) { return p.param("m", 4, 5).i; }
id ids(scope p) { return p.leaf(op::ids, "ids", 1, 1, 1, 1, 6).i; }
id routing(scope p) { return p.param("routing", 8, 3).i; }
id stack(scope p) { return p.param("experts", 3, 7, 5).i; }
id blocks(scope p) { return p.param("R", 1, 1, 5, 5).i; }
template <op Op> id unary(builder& g, scope p) { return make_node::unary(g, Op, a(p)); }
template <op Op> id binary(builder& g, scope p) { return make_node::pointwise(g, Op, a(p), b(p)); }

const std::map<op, example>& examples() {
  static const std::map<op, example> all = {
      {op::add, {binary<op::add>, {all_stay, all_stay}}},
      {op::sub, {binary<op::sub>, {all_stay, all_stay}}},
      {op::mul, {binary<op::mul>, {all_stay, all_stay}}},
      {op::div, {binary<op::div>, {all_stay, all_stay}}},
      {op::minimum, {binary<op::minimum>, {all_stay, all_stay}}},
      {op::maximum, {binary<op::maximum>, {all_stay, all_stay}}},
      {op::sqrt, {unary<op::sqrt>, {all_stay}}},
      {op::exp, {unary<op::exp>, {all_stay}}},
      {op::log, {unary<op::log>, {all_stay}}},
      {op::sin, {unary<op::sin>, {all_stay}}},
      {op::cos, {unary<op::cos>, {all_stay}}},
      {op::tanh, {unary<op::tanh>, {all_stay}}},
      {op::erf, {unary<op::erf>, {all_stay}}},
      {op::sigmoid, {unary<op::sigmoid>, {all_stay}}},
      {op::relu, {unary<op::relu>, {all_stay}}},
      {op::silu, {unary<op::silu>, {all_stay}}},
      {op::gelu, {unary<op::gelu>, {all_stay}}},
      {op::gelu_tanh, {unary<op::gelu_tanh>, {all_stay}}},
      {op::heaviside, {unary<op::heaviside>, {all_stay}}},
      {op::detach, {unary<op::detach>, {all_stay}}},
      // a' b: rows of a and columns of b remain, the inner axis is summed
      {op::matmul,
       {[](builder& g, scope p) { return make_node::matmul(g, a(p), b(p), true); }, {{{0, 1, S, 2}}, {{0, 1, S, 3}}}}},
      {op::row_dot, {[](builder& g, scope p) { return make_node::row_dot(g, a(p), b(p)); }, {last_mixes, last_mixes}}},
      {op::sum_to,
       {[](builder& g, scope p) { return make_node::sum_to(g, a(p), p.param("s", 2, 1, 1, 5).i); }, {{{0, S, S, 3}}}}},
      {op::transpose, {[](builder& g, scope p) { return make_node::transpose(g, a(p)); }, {{{0, 1, 3, 2}}}}},
      {op::permute, {[](builder& g, scope p) { return make_node::permute(g, a(p), 2, 0, 3, 1); }, {{{1, 3, 0, 2}}}}},
      {op::reshape,
       {[](builder& g, scope p) { return make_node::reshape(g, a(p), {1}, {2}, {12}, {5}); }, {{{1, M, M, M}}}}},
      {op::slice, {[](builder& g, scope p) { return make_node::slice(g, a(p), 2, {1}, {2}); }, {{{0, 1, M, 3}}}}},
      {op::pad,
       {[](builder& g, scope p) {
          const id part = make_node::slice(g, a(p), 1, {0}, {2});
          return make_node::pad(g, part, a(p), g.n[part]);
        },
        {{{0, M, 2, 3}}}}},
      {op::concat, {[](builder& g, scope p) { return make_node::concat(g, a(p), b(p), 3); }, {last_mixes, last_mixes}}},
      {op::repeat, {[](builder& g, scope p) { return make_node::repeat(g, a(p), {10}); }, {last_mixes}}},
      {op::fold_columns, {[](builder& g, scope p) { return make_node::fold_columns(g, a(p), {2}); }, {last_mixes}}},
      {op::strict_upper,
       {[](builder& g, scope p) { return make_node::unary(g, op::strict_upper, square(p)); }, {rows_mix}}},
      {op::skew,
       {[](builder& g, scope p) { return make_node::skew(g, p.param("v", 6, 10).i, {5}); }, {{{M, M, 1, M}}}}},
      {op::unskew,
       {[](builder& g, scope p) { return make_node::unskew(g, p.param("Q", 6, 5, 5).i, p.param("v", 6, 10).i); },
        {{{M, 2, M, M}}}}},
      {op::circulant, {[](builder& g, scope p) { return make_node::circulant(g, a(p), false); }, {rows_mix}}},
      {op::inverse, {[](builder& g, scope p) { return make_node::inverse(g, square(p)); }, {rows_mix}}},
      {op::orthonormal,
       {[](builder& g, scope p) { return make_node::unary(g, op::orthonormal, matrix(p)); }, {rows_mix}}},
      {op::neumann, {[](builder& g, scope p) { return make_node::neumann(g, square(p), {5}); }, {rows_mix}}},
      {op::neumann_grad,
       {[](builder& g, scope p) { return make_node::neumann_grad(g, square(p), square(p), {5}); },
        {rows_mix, rows_mix}}},
      {op::rotate,
       {[](builder& g, scope p) { return make_node::rotate(g, a(p), blocks(p), false); }, {last_mixes, all_mixed}}},
      {op::rotate_grad,
       {[](builder& g, scope p) { return make_node::rotate_grad(g, a(p), b(p), blocks(p), false); },
        {{{S, S, S, M}}, {{S, S, S, M}}, all_mixed}}},
      {op::kron,
       {[](builder& g, scope p) { return make_node::kron(g, matrix(p), matrix(p)); }, {all_mixed, all_mixed}}},
      {op::row_kron,
       {[](builder& g, scope p) { return make_node::row_kron(g, matrix(p), matrix(p)); }, {last_mixes, last_mixes}}},
      {op::gather,
       {[](builder& g, scope p) { return make_node::gather(g, matrix(p), ids(p), false); },
        {all_mixed, {{M, M, M, 2}}}}},
      {op::scatter,
       {[](builder& g, scope p) { return make_node::scatter(g, p.param("rows", 6, 5).i, ids(p), false, matrix(p)); },
        {{{M, M, S, M}}, {{M, M, M, S}}}}},
      {op::scatter_elements,
       {[](builder& g, scope p) {
          return make_node::scatter_elements(g, p.param("c", 7).i, p.index("i", 7).i, {4}, {5});
        },
        {{{M, M, S, M}}, all_mixed}}},
      {op::gather_elements,
       {[](builder& g, scope p) {
          return make_node::gather_elements(g, matrix(p), p.index("i", 7).i, p.param("c", 7).i);
        },
        {all_mixed, all_mixed}}},
      {op::softmax, {unary<op::softmax>, {last_mixes}}},
      {op::topk_softmax, {[](builder& g, scope p) { return make_node::topk_softmax(g, a(p), {2}); }, {last_mixes}}},
      {op::softmax_grad,
       {[](builder& g, scope p) { return g.emit(g.shaped(op::softmax_grad, a(p), a(p), b(p))); },
        {last_mixes, last_mixes}}},
      {op::normalize,
       {[](builder& g, scope p) { return make_node::normalize(g, a(p), p.scalar("eps").i, true); },
        {last_mixes, all_mixed}}},
      {op::normalize_grad,
       {[](builder& g, scope p) { return make_node::normalize_grad(g, a(p), p.scalar("eps").i, b(p), true); },
        {last_mixes, all_mixed, last_mixes}}},
      {op::rope, {[](builder& g, scope p) { return make_node::rope(g, a(p), b(p), false); }, {last_mixes, last_mixes}}},
      {op::dropout,
       {[](builder& g, scope p) { return make_node::dropout(g, a(p), ids(p), p.scalar("rate").i, {1}); },
        {last_mixes, all_mixed, all_mixed}}},
      {op::cross_entropy,
       {[](builder& g, scope p) { return make_node::cross_entropy(g, matrix(p), ids(p)); },
        {last_mixes, {{M, M, M, 2}}}}},
      {op::cross_entropy_grad,
       {[](builder& g, scope p) { return make_node::cross_entropy_grad(g, matrix(p), ids(p), p.param("t", 4, 1).i); },
        {last_mixes, {{M, M, M, 2}}, last_mixes}}},
      {op::attention,
       {[](builder& g, scope p) { return make_node::attention(g, matrix(p), ids(p), none_id, {3}, {1}); },
        {all_mixed, all_mixed}}},
      {op::attention_grad,
       {[](builder& g, scope p) {
          const id o = make_node::attention(g, matrix(p), ids(p), none_id, {3}, {1});
          return make_node::attention_grad(g, matrix(p), ids(p), o, o);
        },
        {all_mixed, all_mixed, all_mixed}}},
      {op::cached_attention,
       {[](builder& g, scope p) { return make_node::attention(g, matrix(p), ids(p), blocks(p), {3}, {1}); },
        {all_mixed, all_mixed, all_mixed}}},
      {op::im2col,
       {[](builder& g, scope p) {
          return make_node::im2col(g, p.param("image", 2, 3, 8, 8).i, {{3}, {3}, {1}, {1}});
        },
        {{{1, M, M, M}}}}},
      {op::col2im,
       {[](builder& g, scope p) {
          const id image = p.param("image", 2, 3, 8, 8).i, rows = make_node::im2col(g, image, {{3}, {3}, {1}, {1}});
          return make_node::col2im(g, rows, image, g.n[rows]);
        },
        {{{M, 0, M, M}}}}},
      {op::route, {[](builder& g, scope p) { return make_node::route(g, matrix(p), {2}); }, {rows_stay}}},
      {op::dispatch,
       {[](builder& g, scope p) { return make_node::dispatch(g, matrix(p), routing(p), routed_by::token); },
        {rows_stay, rows_stay}}},
      {op::combine,
       {[](builder& g, scope p) {
          return make_node::combine(g, p.param("rows", 8, 5).i, routing(p), routed_by::token, matrix(p));
        },
        {rows_stay, rows_stay}}},
      {op::grouped_matmul,
       {[](builder& g, scope p) {
          return make_node::grouped_matmul(g, p.param("rows", 8, 5).i, stack(p), routing(p), true);
        },
        {rows_stay, all_mixed, rows_stay}}},
      {op::grouped_wgrad,
       {[](builder& g, scope p) {
          return make_node::grouped_wgrad(g, p.param("t", 8, 7).i, p.param("rows", 8, 5).i, routing(p), stack(p));
        },
        {rows_sum, rows_sum, rows_sum}}},
      {op::all_reduce_sum, {unary<op::all_reduce_sum>, {all_mixed}}},
      {op::all_reduce_max, {unary<op::all_reduce_max>, {all_mixed}}},
      {op::host,
       {[](builder&, scope p) {
          return host("f", ex{p.g, a(p)}).i;
        },
        {all_mixed}}},
  };
  return all;
}

}  // namespace

TEST_CASE("axes: every operand of every operation") {
  for (int o = 0; o <= static_cast<int>(op::host); ++o) {
    const op what = static_cast<op>(o);
    if (is_leaf(what)) continue;
    INFO(std::string(traits_of(what).name));
    REQUIRE(examples().contains(what));  // a new operation needs an example here
    const example& e = examples().at(what);
    builder g;
    const id made = e.make(g, scope{&g});
    REQUIRE(g.n[made].what == what);
    REQUIRE(static_cast<int>(e.operands.size()) == traits_of(what).arity);
    for (int k = 0; k < traits_of(what).arity; ++k)
      for (int axis = 0; axis < 4; ++axis) {
        INFO("operand ", k, ", axis ", axis);
        CHECK(axis_after(g, g.n[made], k, axis) == e.operands[static_cast<std::size_t>(k)].to[axis]);
      }
  }
}

TEST_CASE("axes: products with other transpositions, and products that sum over a stack") {
  builder g;
  const scope p{&g};
  const id plain = make_node::matmul(g, square(p), b(p)), transposed = make_node::matmul(g, a(p), b(p), false, true);
  const id summed = make_node::matmul(g, a(p), b(p), true, false, 0, true);
  auto after = [&](id i, int k, int axis) { return axis_after(g, g.n[i], k, axis); };
  CHECK(after(plain, 0, 2) == 2);
  CHECK(after(plain, 0, 3) == S);
  CHECK(after(plain, 1, 2) == S);
  CHECK(after(plain, 1, 3) == 3);
  CHECK(after(transposed, 1, 2) == 3);
  CHECK(after(transposed, 1, 3) == S);
  for (int axis = 0; axis < 2; ++axis) CHECK(after(summed, 0, axis) == S);
  CHECK(after(summed, 0, 3) == 2);
}

TEST_CASE("axes: what rows take from their expert has no rows, and what is summed for experts neither") {
  builder g;
  const scope p{&g};
  const id each = p.param("each", 3, 1, 5).i;
  const id taken = make_node::dispatch(g, each, routing(p), routed_by::expert);
  const id sums = make_node::combine(g, p.param("rows", 8, 5).i, routing(p), routed_by::expert, each);
  for (int axis = 0; axis < 4; ++axis) CHECK(axis_after(g, g.n[taken], 0, axis) == M);
  CHECK(axis_after(g, g.n[taken], 1, 2) == 2);
  for (int k = 0; k < 2; ++k) CHECK(axis_after(g, g.n[sums], k, 2) == S);
}

TEST_CASE("axes: operations that add into their output") {
  CHECK(accumulates_result(op::sum_to));
  CHECK(accumulates_result(op::scatter));
  CHECK(accumulates_result(op::rotate_grad));
  CHECK(accumulates_result(op::scatter_elements));
  CHECK(accumulates_result(op::col2im));
  CHECK(accumulates_result(op::combine));
  CHECK(accumulates_result(op::grouped_wgrad));
  int others = 0;
  for (int o = 0; o <= static_cast<int>(op::host); ++o) others += accumulates_result(static_cast<op>(o)) ? 1 : 0;
  CHECK(others == 7);
}
