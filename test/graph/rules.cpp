// SPDX-License-Identifier: Apache-2.0
// The shape of every operation's value, and the requirements on its operands: kind, both sizes, line.
#include <graft/graph/rules.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

struct sample {
  builder g{};
  constexpr id tensor(dim d0, dim d1, dim d2, dim d3) { return g.leaf(op::param, "t", 0, 4, d0, d1, d2, d3); }
  constexpr id matrix(dim rows, dim cols) { return tensor({1}, {1}, rows, cols); }
};
template <class F> constexpr auto in_sample(F f) {
  sample s;
  return f(s);
}
struct shape {
  int d[4];
  friend constexpr bool operator==(const shape&, const shape&) = default;
};
constexpr shape shape_of(const builder& g, id i) {
  const node& v = g.n[i];
  return {{v.d[0].v, v.d[1].v, v.d[2].v, v.d[3].v}};
}
template <class F> constexpr shape made(F f) {
  sample s;
  const id i = f(s);
  return shape_of(s.g, i);
}
// The requirements that creating a node adds, in order.
struct left {
  int count = 0;
  requirement::kind what{};
  int lhs = 0, rhs = 0, line = 0;
  bool at_result = false;
  friend constexpr bool operator==(const left&, const left&) = default;
};
template <class F> constexpr left required(F f) {
  sample s;
  const id i = f(s);
  if (s.g.need.empty()) return {};
  const requirement& r = s.g.need[0];
  return {s.g.need.size(), r.what, r.lhs.v, r.rhs.v, r.line, r.at == i};
}
constexpr left nothing{};
using kind = requirement::kind;

}  // namespace

TEST_CASE("shapes: elementwise ops broadcast axes of size 1 of both operands") {
  BOTH(made([](sample& s) { return make_node::add(s.g, s.matrix({3}, {4}), s.matrix({3}, {4})); }) ==
       shape{{1, 1, 3, 4}});
  BOTH(made([](sample& s) { return make_node::mul(s.g, s.matrix({3}, {1}), s.matrix({3}, {4})); }) ==
       shape{{1, 1, 3, 4}});
  BOTH(made([](sample& s) { return make_node::sub(s.g, s.matrix({3}, {1}), s.matrix({1}, {4})); }) ==
       shape{{1, 1, 3, 4}});
  BOTH(made([](sample& s) { return make_node::div(s.g, s.matrix({3}, {4}), s.tensor({2}, {5}, {1}, {4})); }) ==
       shape{{2, 5, 3, 4}});
  BOTH(made([](sample& s) { return make_node::unary(s.g, op::sqrt, s.tensor({2}, {5}, {1}, {4})); }) ==
       shape{{2, 5, 1, 4}});
}

TEST_CASE("shapes: products, with every pair of transpositions, of stacks, and summed over stacks") {
  BOTH(made([](sample& s) { return make_node::matmul(s.g, s.matrix({3}, {4}), s.matrix({4}, {5})); }) ==
       shape{{1, 1, 3, 5}});
  BOTH(made([](sample& s) { return make_node::matmul(s.g, s.matrix({4}, {3}), s.matrix({4}, {5}), true); }) ==
       shape{{1, 1, 3, 5}});
  BOTH(made([](sample& s) { return make_node::matmul(s.g, s.matrix({3}, {4}), s.matrix({5}, {4}), false, true); }) ==
       shape{{1, 1, 3, 5}});
  BOTH(made([](sample& s) { return make_node::matmul(s.g, s.matrix({4}, {3}), s.matrix({5}, {4}), true, true); }) ==
       shape{{1, 1, 3, 5}});
  BOTH(made([](sample& s) { return make_node::matmul(s.g, s.tensor({2}, {6}, {3}, {4}), s.matrix({4}, {5})); }) ==
       shape{{2, 6, 3, 5}});
  BOTH(made([](sample& s) { return make_node::matmul(s.g, s.matrix({3}, {4}), s.tensor({2}, {6}, {4}, {5})); }) ==
       shape{{2, 6, 3, 5}});
  BOTH(made([](sample& s) {
         const id a = s.tensor({2}, {6}, {4}, {3}), b = s.tensor({2}, {6}, {4}, {5});
         return make_node::matmul(s.g, a, b, true, false, 0, true);
       }) == shape{{1, 1, 3, 5}});
}

TEST_CASE("shapes: reductions and rearrangements") {
  BOTH(made([](sample& s) { return make_node::row_dot(s.g, s.matrix({3}, {4}), s.matrix({3}, {4})); }) ==
       shape{{1, 1, 3, 1}});
  BOTH(made([](sample& s) { return make_node::sum_to(s.g, s.matrix({3}, {4}), s.matrix({1}, {4})); }) ==
       shape{{1, 1, 1, 4}});
  BOTH(made([](sample& s) { return make_node::transpose(s.g, s.tensor({2}, {5}, {3}, {4})); }) == shape{{2, 5, 4, 3}});
  BOTH(made([](sample& s) { return make_node::permute(s.g, s.tensor({2}, {5}, {3}, {4}), 0, 2, 1, 3); }) ==
       shape{{2, 3, 5, 4}});
  BOTH(made([](sample& s) { return make_node::as_row(s.g, s.matrix({7}, {1})); }) == shape{{1, 1, 1, 7}});
  BOTH(made([](sample& s) { return make_node::repeat(s.g, s.matrix({3}, {4}), {10}); }) == shape{{1, 1, 3, 10}});
  BOTH(made([](sample& s) { return make_node::fold_columns(s.g, s.matrix({3}, {10}), {4}); }) == shape{{1, 1, 3, 4}});
  BOTH(made([](sample& s) { return make_node::skew(s.g, s.matrix({6}, {28}), {8}); }) == shape{{1, 6, 8, 8}});
  BOTH(made([](sample& s) { return make_node::unskew(s.g, s.tensor({1}, {6}, {8}, {8}), s.matrix({6}, {28})); }) ==
       shape{{1, 1, 6, 28}});
}

TEST_CASE("shapes: permuted axes, slices of an axis, concatenated tensors") {
  BOTH(made([](sample& s) { return make_node::permute(s.g, s.tensor({2}, {5}, {3}, {4}), 3, 0, 2, 1); }) ==
       shape{{4, 2, 3, 5}});
  BOTH(in_sample(
      [](sample& s) { return make_node::permute(s.g, s.matrix({3}, {4}), 0, 1, 2, 3) == s.matrix({3}, {4}); }));
  BOTH(in_sample([](sample& s) {  // swapping only the last two axes is a transposition
    return s.g.n[make_node::permute(s.g, s.matrix({3}, {4}), 0, 1, 3, 2)].what == op::transpose;
  }));
  BOTH(in_sample([](sample& s) {
    const id a = s.tensor({2}, {5}, {3}, {4}), permuted = make_node::permute(s.g, a, 3, 0, 2, 1);
    return same_shape(s.g.n[make_node::unpermute(s.g, permuted, s.g.n[permuted])], s.g.n[a]);
  }));
  BOTH(made([](sample& s) { return make_node::slice(s.g, s.matrix({3}, {9}), 3, {2}, {4}); }) == shape{{1, 1, 3, 4}});
  BOTH(made([](sample& s) { return make_node::slice(s.g, s.tensor({7}, {5}, {3}, {4}), 0, {2}, {4}); }) ==
       shape{{4, 5, 3, 4}});
  BOTH(in_sample(
      [](sample& s) { return make_node::slice(s.g, s.matrix({3}, {9}), 3, {0}, {9}) == s.matrix({3}, {9}); }));
  BOTH(made([](sample& s) {
         const id a = s.matrix({3}, {9}), part = make_node::slice(s.g, a, 3, {2}, {4});
         return make_node::pad(s.g, part, a, s.g.n[part]);
       }) == shape{{1, 1, 3, 9}});
  BOTH(made([](sample& s) { return make_node::concat(s.g, s.matrix({3}, {9}), s.matrix({3}, {2}), 3); }) ==
       shape{{1, 1, 3, 11}});
  BOTH(made([](sample& s) { return make_node::concat(s.g, s.matrix({3}, {9}), s.matrix({4}, {9}), 2); }) ==
       shape{{1, 1, 7, 9}});
  BOTH(made([](sample& s) { return make_node::unary(s.g, op::softmax, s.tensor({2}, {5}, {3}, {4})); }) ==
       shape{{2, 5, 3, 4}});
}

TEST_CASE("shapes: scatter into a zero matrix and gather from a matrix") {
  BOTH(made([](sample& s) {
         const id index = s.g.leaf(op::index, "i", 0, 2, {1}, {1}, {2}, {7});
         return make_node::scatter_elements(s.g, s.matrix({7}, {1}), index, {4}, {5});
       }) == shape{{1, 1, 4, 5}});
  BOTH(made([](sample& s) {
         const id index = s.g.leaf(op::index, "i", 0, 2, {1}, {1}, {2}, {7});
         return make_node::gather_elements(s.g, s.matrix({4}, {5}), index, s.matrix({7}, {1}));
       }) == shape{{1, 1, 7, 1}});
}

TEST_CASE("shapes: Kronecker products, look-ups, patches, rotations, rows") {
  BOTH(made([](sample& s) { return make_node::kron(s.g, s.matrix({2}, {3}), s.matrix({4}, {5})); }) ==
       shape{{1, 1, 8, 15}});
  BOTH(made([](sample& s) { return make_node::row_kron(s.g, s.matrix({7}, {3}), s.matrix({7}, {5})); }) ==
       shape{{1, 1, 7, 15}});
  BOTH(made([](sample& s) {
         const id ids = s.g.leaf(op::ids, "x", 0, 1, {1}, {1}, {1}, {9});
         return make_node::gather(s.g, s.matrix({50}, {12}), ids, false);
       }) == shape{{1, 1, 9, 12}});
  BOTH(made([](sample& s) {
         const id ids = s.g.leaf(op::ids, "x", 0, 1, {1}, {1}, {1}, {9});
         return make_node::gather(s.g, s.matrix({12}, {50}), ids, true);
       }) == shape{{1, 1, 9, 12}});
  BOTH(made([](sample& s) {
         const id ids = s.g.leaf(op::ids, "x", 0, 1, {1}, {1}, {1}, {9});
         return make_node::scatter(s.g, s.matrix({9}, {12}), ids, false, s.matrix({50}, {12}));
       }) == shape{{1, 1, 50, 12}});
  BOTH(made([](sample& s) {
         return make_node::rotate(s.g, s.matrix({5}, {48}), s.tensor({2}, {6}, {8}, {8}), true);
       }) == shape{{1, 1, 5, 48}});
  BOTH(made([](sample& s) {
         const id q = s.tensor({2}, {6}, {8}, {8});
         return make_node::rotate_grad(s.g, s.matrix({5}, {48}), s.matrix({5}, {48}), q, true);
       }) == shape{{2, 6, 8, 8}});
  BOTH(made([](sample& s) { return make_node::topk_softmax(s.g, s.matrix({3}, {9}), {2}); }) == shape{{1, 1, 3, 9}});
  BOTH(made([](sample& s) { return make_node::normalize(s.g, s.matrix({3}, {9}), s.g.constant(1e-5), true); }) ==
       shape{{1, 1, 3, 9}});
}

TEST_CASE("shapes: patches of an image and their adjoint") {
  sample s;
  const id x = s.tensor({2}, {3}, {5}, {6}), rows = make_node::im2col(s.g, x, {{3}, {2}, {2}, {1}});
  const id image = make_node::col2im(s.g, rows, x, s.g.n[rows]);
  auto size = [&](int axis) { return s.g.sizes().value(s.g.n[rows].d[axis], size_values{}); };
  CHECK(size(1) == 2);
  CHECK(size(2) == 12);  // 3 windows vertically, 4 horizontally
  CHECK(size(3) == 18);
  CHECK(same_shape(s.g.n[image], s.g.n[x]));
}

// ---- requirements

TEST_CASE("requirements: equal inner sizes need nothing") {
  BOTH(required([](sample& s) {
         return make_node::matmul(s.g, s.matrix({3}, {4}), s.matrix({4}, {5}), false, false, 9);
       }) == nothing);
}

TEST_CASE("requirements: inner") {
  BOTH(required([](sample& s) {
         return make_node::matmul(s.g, s.matrix({3}, {4}), s.matrix({6}, {5}), false, false, 9);
       }) == left{1, kind::inner, 4, 6, 9, true});
  BOTH(required([](sample& s) {
         return make_node::matmul(s.g, s.matrix({3}, {4}), s.matrix({6}, {5}), true, true, 9);
       }) == left{1, kind::inner, 3, 5, 9, true});
  BOTH(required([](sample& s) {  // stacks of different lengths as well
         return make_node::matmul(s.g, s.tensor({1}, {2}, {3}, {4}), s.tensor({1}, {7}, {4}, {5}), false, false, 9);
       }) == left{1, kind::same, 2, 7, 9, true});
}

TEST_CASE("requirements: same") {
  BOTH(required([](sample& s) { return make_node::add(s.g, s.matrix({3}, {4}), s.matrix({3}, {5}), 12); }) ==
       left{1, kind::same, 4, 5, 12, true});
  BOTH(required([](sample& s) { return make_node::add(s.g, s.matrix({3}, {4}), s.matrix({1}, {4}), 12); }) == nothing);
  BOTH(required([](sample& s) { return make_node::row_dot(s.g, s.matrix({3}, {4}), s.matrix({2}, {4}), 5); }) ==
       left{1, kind::same, 3, 2, 5, true});
  BOTH(required([](sample& s) { return make_node::row_kron(s.g, s.matrix({3}, {4}), s.matrix({2}, {4}), 5); }) ==
       left{1, kind::same, 3, 2, 5, true});
  BOTH(required([](sample& s) { return make_node::skew(s.g, s.matrix({6}, {27}), {8}, 7); }) ==
       left{1, kind::same, 27, 28, 7, true});
}

TEST_CASE("requirements: operations on one matrix refuse stacks of them") {
  BOTH(required([](sample& s) { return make_node::kron(s.g, s.tensor({1}, {2}, {3}, {4}), s.matrix({3}, {4}), 5); }) ==
       left{1, kind::same, 2, 1, 5, true});
  BOTH(required([](sample& s) {
         return make_node::row_kron(s.g, s.matrix({3}, {4}), s.tensor({2}, {1}, {3}, {4}), 5);
       }) == left{1, kind::same, 2, 1, 5, true});
  BOTH(required([](sample& s) {
         return make_node::row_dot(s.g, s.tensor({1}, {2}, {3}, {4}), s.matrix({3}, {4}), 5);
       }) == left{1, kind::same, 2, 1, 5, true});
  BOTH(required([](sample& s) {
         return make_node::gather(s.g, s.tensor({1}, {2}, {3}, {4}), s.matrix({1}, {6}), false);
       }) == left{1, kind::same, 2, 1, 0, true});
}
TEST_CASE("requirements: square") {
  BOTH(required([](sample& s) { return make_node::inverse(s.g, s.matrix({3}, {4}), 6); }) ==
       left{1, kind::square, 3, 4, 6, false});  // about the operand, which is not square
  BOTH(required([](sample& s) { return make_node::inverse(s.g, s.matrix({4}, {4}), 6); }) == nothing);
  BOTH(required([](sample& s) { return make_node::neumann(s.g, s.matrix({3}, {4}), {5}, 6); }) ==
       left{1, kind::square, 3, 4, 6, false});
}

TEST_CASE("requirements: divides") {
  BOTH(required([](sample& s) {
         s.g.over({48}, {7}, 21);
         return none_id;
       }) == left{1, kind::divides, 48, 7, 21, true});
  BOTH(required([](sample& s) {
         s.g.over({48}, {8}, 21);
         return none_id;
       }) == nothing);
  BOTH(required([](sample& s) {  // the size of shared blocks must divide the input
         return make_node::rotate(s.g, s.matrix({5}, {50}), s.tensor({1}, {1}, {8}, {8}), true, 4);
       }) == left{1, kind::divides, 50, 8, 4, true});
  BOTH(required([](sample& s) {  // blocks with values of their own must cover it
         return make_node::rotate(s.g, s.matrix({5}, {50}), s.tensor({1}, {6}, {8}, {8}), true, 4);
       }) == left{1, kind::inner, 50, 48, 4, true});
}

TEST_CASE("requirements: at most") {
  BOTH(required([](sample& s) { return make_node::slice(s.g, s.matrix({3}, {9}), 3, {6}, {4}, 8); }) ==
       left{1, kind::at_most, 10, 9, 8, true});
  BOTH(required([](sample& s) { return make_node::slice(s.g, s.matrix({3}, {9}), 3, {5}, {4}, 8); }) == nothing);
}

TEST_CASE("requirements: concatenation, and scatter by index") {
  BOTH(required([](sample& s) { return make_node::concat(s.g, s.matrix({3}, {9}), s.matrix({4}, {2}), 3, 6); }) ==
       left{1, kind::same, 3, 4, 6, true});
  BOTH(required([](sample& s) {  // as many numbers as indices
         const id index = s.g.leaf(op::index, "i", 0, 2, {1}, {1}, {2}, {6});
         return make_node::scatter_elements(s.g, s.matrix({7}, {1}), index, {4}, {5}, 6);
       }) == left{1, kind::same, 7, 6, 6, true});
  BOTH(required([](sample& s) {  // a column of numbers
         const id index = s.g.leaf(op::index, "i", 0, 2, {1}, {1}, {2}, {7});
         return make_node::scatter_elements(s.g, s.matrix({7}, {2}), index, {4}, {5}, 6);
       }) == left{1, kind::same, 2, 1, 6, true});
}

TEST_CASE("requirements: named sizes are compared at binding, once per pair") {
  BOTH(in_sample([](sample& s) {
    const dim in = s.g.size_named("in", 0, 8), other = s.g.size_named("other", 0, 8);
    const id a = s.matrix({3}, in), b = s.matrix(other, {5});
    make_node::matmul(s.g, a, b, false, false, 2);
    make_node::matmul(s.g, a, b, false, false, 2);
    return s.g.need.size() == 1 && s.g.need[0].lhs == in && s.g.need[0].rhs == other;
  }));
}
