// SPDX-License-Identifier: Apache-2.0
#include <graft/graph/canonical.h>
#include <graft/graph/rules.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

// A small graph with a weight, two parameters and the usual sizes, built anew for every check.
struct sample {
  builder g{};
  dim out{}, in{}, r{};
  id W{}, A{}, B{}, s{};
  constexpr sample() {
    out = g.size_named("out", 0, 8), in = g.size_named("in", 0, 8), r = g.size_named("r", 0, 2);
    W = matrix(op::base, "W", out, in);
    A = matrix(op::param, "A", r, in);
    B = matrix(op::param, "B", out, r);
    s = g.leaf(op::scalar, "s", 0, 0, {1}, {1}, {1}, {1});
  }
  constexpr id matrix(op o, const char* name, dim rows, dim cols) {
    return g.leaf(o, name, 0, 2, {1}, {1}, rows, cols);
  }
  constexpr id zero(dim rows, dim cols) { return matrix(op::zero, "0", rows, cols); }
};
template <class F> constexpr auto in_sample(F f) {
  sample s;
  return f(s);
}

}  // namespace

// ---- hash-consing

TEST_CASE("builder: equal nodes are made once") {
  BOTH(in_sample([](sample& s) {
    const id first = make_node::matmul(s.g, s.B, s.A), nodes = s.g.n.size();
    return make_node::matmul(s.g, s.B, s.A) == first && s.g.n.size() == nodes;
  }));
  BOTH(in_sample([](sample& s) { return s.matrix(op::param, "A", s.r, s.in) == s.A; }));
  BOTH(in_sample([](sample& s) { return s.g.constant(2) == s.g.constant(2); }));
  BOTH(in_sample([](sample& s) {  // the line of a node is no part of its identity
    return make_node::unary(s.g, op::exp, s.W, 3) == make_node::unary(s.g, op::exp, s.W, 9);
  }));
}

TEST_CASE("builder: nodes that differ in any attribute are different nodes") {
  BOTH(in_sample([](sample& s) { return make_node::matmul(s.g, s.B, s.A) != make_node::matmul(s.g, s.A, s.B); }));
  BOTH(in_sample(
      [](sample& s) { return make_node::matmul(s.g, s.W, s.A, true) != make_node::matmul(s.g, s.W, s.A, false); }));
  BOTH(in_sample([](sample& s) {  // square, so that only the transposition differs
    const id q = s.matrix(op::param, "Q", s.r, s.r), p = s.matrix(op::param, "P", s.r, s.r);
    const id plain = make_node::matmul(s.g, q, p), left = make_node::matmul(s.g, q, p, true),
             right = make_node::matmul(s.g, q, p, false, true);
    return plain != left && plain != right && left != right;
  }));
  BOTH(in_sample([](sample& s) { return s.matrix(op::param, "A2", s.r, s.in) != s.A; }));
  BOTH(in_sample([](sample& s) { return s.matrix(op::param, "A", s.in, s.r) != s.A; }));
  BOTH(in_sample([](sample& s) { return s.matrix(op::frozen, "A", s.r, s.in) != s.A; }));
  BOTH(in_sample([](sample& s) { return s.g.constant(2) != s.g.constant(3); }));
  BOTH(
      in_sample([](sample& s) { return make_node::unary(s.g, op::exp, s.W) != make_node::unary(s.g, op::tanh, s.W); }));
  BOTH(in_sample([](sample& s) {  // whole-number arguments count
    const id q = s.matrix(op::param, "Q", s.r, s.r);
    return make_node::neumann(s.g, q, {4}) != make_node::neumann(s.g, q, {5});
  }));
}

namespace {

constexpr id host(sample& s, const char* name) {
  node v = s.g.shaped(op::host, s.W, s.W);
  v.name = name;
  return s.g.emit(v);
}

}  // namespace

TEST_CASE("builder: two host functions on one operand are two nodes") {
  CHECK(in_sample([](sample& s) { return host(s, "f") != host(s, "g"); }));
}

// ---- rules that hold for any operands

TEST_CASE("builder: x + 0 = x, 0 + x = x, x - 0 = x") {
  BOTH(in_sample([](sample& s) { return make_node::add(s.g, s.W, s.zero(s.out, s.in)) == s.W; }));
  BOTH(in_sample([](sample& s) { return make_node::add(s.g, s.zero(s.out, s.in), s.W) == s.W; }));
  BOTH(in_sample([](sample& s) { return make_node::sub(s.g, s.W, s.zero(s.out, s.in)) == s.W; }));
  BOTH(in_sample([](sample& s) { return make_node::add(s.g, s.W, s.zero({1}, s.in)) == s.W; }));  // a zero row
  BOTH(in_sample([](sample& s) {                                                                  // 0 - x is not x
    return s.g.n[make_node::sub(s.g, s.zero(s.out, s.in), s.W)].what == op::sub;
  }));
  BOTH(in_sample([](sample& s) {  // a zero of a larger shape broadcasts: row + 0[out, in] is not the row
    const id row = s.matrix(op::param, "b", {1}, s.in), sum = make_node::add(s.g, row, s.zero(s.out, s.in));
    return sum != row && s.g.n[sum].d[2] == s.out;
  }));
}

TEST_CASE("builder: 1 x = x, 0 x = 0, x / 1 = x, constants are multiplied") {
  BOTH(in_sample([](sample& s) { return make_node::mul(s.g, s.g.constant(1), s.W) == s.W; }));
  BOTH(in_sample([](sample& s) { return make_node::mul(s.g, s.W, s.g.constant(1)) == s.W; }));
  BOTH(in_sample([](sample& s) { return make_node::div(s.g, s.W, s.g.constant(1)) == s.W; }));
  BOTH(in_sample([](sample& s) {
    const id z = make_node::mul(s.g, s.W, s.zero(s.out, s.in));
    return s.g.n[z].what == op::zero && same_shape(s.g.n[z], s.g.n[s.W]);
  }));
  BOTH(in_sample([](sample& s) {  // a zero scalar makes a zero of the full shape
    const id z = make_node::mul(s.g, s.zero({1}, {1}), s.W);
    return s.g.n[z].what == op::zero && same_shape(s.g.n[z], s.g.n[s.W]);
  }));
  BOTH(in_sample([](sample& s) { return s.g.n[make_node::div(s.g, s.zero(s.out, s.in), s.W)].what == op::zero; }));
  BOTH(in_sample([](sample& s) { return make_node::mul(s.g, s.g.constant(2), s.g.constant(3)) == s.g.constant(6); }));
  BOTH(in_sample([](sample& s) { return s.g.n[make_node::mul(s.g, s.g.constant(2), s.W)].what == op::mul; }));
}

TEST_CASE("builder: I x = x, and a product with zero is zero") {
  BOTH(in_sample([](sample& s) { return make_node::matmul(s.g, s.matrix(op::eye, "I", s.out, s.out), s.W) == s.W; }));
  BOTH(in_sample([](sample& s) {  // I xᵀ is not x
    return make_node::matmul(s.g, s.matrix(op::eye, "I", s.in, s.in), s.W, false, true) != s.W;
  }));
  BOTH(in_sample([](sample& s) {
    const id z = make_node::matmul(s.g, s.B, s.zero(s.r, s.in));
    return s.g.n[z].what == op::zero && same_shape(s.g.n[z], s.g.n[s.W]);
  }));
}

TEST_CASE("builder: (A')' = A, and a product absorbs the transpositions of its operands") {
  BOTH(in_sample([](sample& s) { return make_node::transpose(s.g, make_node::transpose(s.g, s.W)) == s.W; }));
  BOTH(in_sample([](sample& s) {
    const id p = make_node::matmul(s.g, make_node::transpose(s.g, s.A), make_node::transpose(s.g, s.B));
    const node& v = s.g.n[p];
    return v.a == s.A && v.b == s.B && v.ta && v.tb && v.d[2] == s.in && v.d[3] == s.out;
  }));
  BOTH(in_sample([](sample& s) {
    return make_node::matmul(s.g, make_node::transpose(s.g, s.A), s.B, true, false) == make_node::matmul(s.g, s.A, s.B);
  }));
  BOTH(in_sample([](sample& s) { return s.g.n[make_node::transpose(s.g, s.zero(s.out, s.in))].what == op::zero; }));
}

TEST_CASE("builder: two reshapes are one, and a reshape to the same sizes is none") {
  BOTH(in_sample([](sample& s) {
    const id flat = make_node::reshape(s.g, s.W, {1}, {1}, {1}, s.g.times(s.out, s.in));
    return make_node::reshape(s.g, flat, {1}, {1}, s.out, s.in) == s.W;
  }));
  BOTH(in_sample([](sample& s) { return make_node::reshape_like(s.g, s.W, s.W) == s.W; }));
  BOTH(in_sample([](sample& s) {
    return make_node::repeat(s.g, s.W, s.in) == s.W && make_node::fold_columns(s.g, s.W, s.in) == s.W;
  }));
}

TEST_CASE("builder: sum_to returns a value that has the shape already") {
  BOTH(in_sample([](sample& s) { return make_node::sum_to(s.g, s.W, s.W) == s.W; }));
  BOTH(in_sample([](sample& s) {
    const id row = s.matrix(op::param, "b", {1}, s.in), d = make_node::sum_to(s.g, s.W, row);
    return s.g.n[d].what == op::sum_to && same_shape(s.g.n[d], s.g.n[row]);
  }));
}

// ---- sizes

TEST_CASE("builder: a size of a name is made once") {
  BOTH(in_sample([](sample& s) { return s.g.size_named("in", 0, 8) == s.in && s.g.size_list.size() == 3; }));
  BOTH(in_sample([](sample& s) { return s.g.times(s.in, s.r) == s.g.times(s.r, s.in); }));
}

TEST_CASE("builder: products and quotients of sizes cancel") {
  BOTH(in_sample([](sample& s) { return s.g.times({6}, {7}) == dim{42}; }));
  BOTH(in_sample([](sample& s) { return s.g.times({1}, s.in) == s.in && s.g.times(s.in, {1}) == s.in; }));
  BOTH(in_sample([](sample& s) { return s.g.over({42}, {7}) == dim{6}; }));
  BOTH(in_sample([](sample& s) { return s.g.over(s.in, {1}) == s.in && s.g.over(s.in, s.in) == dim{1}; }));
  BOTH(in_sample([](sample& s) { return s.g.times(s.g.over(s.in, s.r), s.r) == s.in; }));
  BOTH(in_sample([](sample& s) { return s.g.times(s.r, s.g.over(s.in, s.r)) == s.in; }));
  BOTH(in_sample([](sample& s) { return s.g.over(s.g.times(s.in, s.r), s.r) == s.in; }));
  BOTH(in_sample([](sample& s) { return s.g.over(s.g.times(s.in, s.r), s.in) == s.r; }));
  BOTH(in_sample([](sample& s) { return s.g.over(s.in, {4}) == s.g.over(s.in, {4}); }));
  BOTH(in_sample([](sample& s) { return s.g.triangle({8}) == dim{28}; }));
}

// ---- limits exist for names of sizes only

TEST_CASE("builder: nodes, derived sizes, outputs and requirements have no fixed limit") {
  sample s;
  for (int i = 0; i < 1500; ++i) s.g.constant(i + 100);
  CHECK(s.g.n.size() == 1504);
  CHECK(s.g.constant(100 + 700) == 4 + 700);  // and each is still found
  for (int i = 0; i < 200; ++i) s.g.triangle(s.g.over(s.in, {i + 2}));
  CHECK(s.g.size_list.size() == 403);
  for (int i = 0; i < 40; ++i) s.g.add_output(4 + i, "y");
  CHECK(s.g.out.size() == 40);
  CHECK(s.g.out[39].at == 43);
  s.g.need.clear();
  for (int i = 0; i < 200; ++i) s.g.require(requirement::kind::same, s.in, {i + 2}, s.W, 1);
  CHECK(s.g.need.size() == 200);
  CHECK(s.g.bad.what == formula_error::none);
  const builder all = canonical(s.g);
  CHECK(all.out.size() == 40);
  CHECK(all.need.size() == 200);
  CHECK(all.n.size() == 40);  // no output needs W and the other nodes
}

namespace {

struct many_names {
  char of[max_names + 1][6]{};
  constexpr many_names() {
    for (int i = 0; i <= max_names; ++i) {
      const char digits[6] = {'n',
                              static_cast<char>('0' + i / 100),
                              static_cast<char>('0' + i / 10 % 10),
                              static_cast<char>('0' + i % 10),
                              '\0',
                              '\0'};
      for (int k = 0; k < 6; ++k) of[i][k] = digits[k];
    }
  }
};
constexpr many_names names;

}  // namespace

TEST_CASE("builder: a size name beyond the limit is an error that names it") {
  builder g;
  for (int i = 0; i < max_names; ++i) g.size_named(names.of[i], 0, 8);
  CHECK(g.bad.what == formula_error::none);
  CHECK(g.sizes().find("n191") == max_names - 1);
  CHECK(g.size_named("n005", 0, 8) == entry_dim(5));  // an existing name is found
  CHECK(g.bad.what == formula_error::none);
  g.size_named(names.of[max_names], 0, 8);
  CHECK(g.bad.what == formula_error::too_many_sizes);
  CHECK(std::string(g.bad.name) == "n192");
}

TEST_CASE("builder: a second leaf of the same name with another shape is an error that cites the first one") {
  auto taken = [](auto&& second) {
    sample s;
    second(s);
    return s.g.bad.what == formula_error::name_is_taken && s.g.bad.at == s.A && std::string(s.g.bad.name) == "A";
  };
  CHECK(taken([](sample& s) { s.matrix(op::param, "A", s.in, s.r); }));
  CHECK(taken([](sample& s) { s.matrix(op::frozen, "A", s.r, s.in); }));
  CHECK(taken([](sample& s) { s.g.leaf(op::param, "A", 0, 3, {1}, {1}, s.r, s.in); }));  // three axes in the file
  CHECK_FALSE(taken([](sample& s) { s.matrix(op::param, "A", s.r, s.in); }));
  CHECK_FALSE(taken([](sample& s) { s.g.leaf(op::param, "A", s.g.path(0, "other"), 2, {1}, {1}, s.in, s.r); }));
  BOTH(in_sample(
      [](sample& s) { return s.zero(s.r, s.in) != s.zero(s.in, s.r) && s.g.bad.what == formula_error::none; }));
}

TEST_CASE("builder: the first error is the one that is reported") {
  BOTH(in_sample([](sample& s) {
    s.g.stop({formula_error::not_differentiable, s.W, 7});
    s.g.stop({formula_error::too_many_sizes, s.A, 9});
    return s.g.bad.what == formula_error::not_differentiable && s.g.bad.at == s.W && s.g.bad.line == 7;
  }));
}

namespace {

constexpr builder product_graph() {
  sample s;
  s.g.add_output(make_node::matmul(s.g, s.B, s.A), "BA");
  return s.g;
}
constexpr graph_counts parts = counts_of(product_graph());
constexpr auto stored = store_graph<parts.nodes, parts.sizes, parts.paths, parts.needs, parts.outs>(product_graph());

}  // namespace

TEST_CASE("graph: leaves are found by name, and a stored graph has exactly its nodes") {
  static constexpr graph kept = stored;
  const builder made = product_graph();
  BOTH(kept.size == 5);
  BOTH(parts.sizes == 3);
  BOTH(parts.outs == 1);
  CHECK(kept.find("A") == made.find("A"));
  BOTH(kept.find("A") == 1);
  BOTH(kept.find("nothing") == none_id);
  CHECK(kept.result("BA") == made.result("BA"));
  BOTH(kept.result("A") == none_id);
  BOTH(kept[kept.result("BA")].what == op::matmul);
}
