// SPDX-License-Identifier: Apache-2.0
#include <graft/graph/formula.h>
#include <graft/graph/print.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

template <class F> constexpr node made(F f) {
  builder g{};
  const scope p{&g};
  return *f(p);
}
template <class F> constexpr text written(F f) {
  builder g{};
  const scope p{&g};
  const ex made = f(p);
  return expression(g, made.i);
}
constexpr ex W(scope p) { return p.leaf(op::base, "W", 2, 1, 1, p.size("out"), p.size("in")); }
constexpr ex column(scope p) { return p.param("c", p.size("out"), 1); }

}  // namespace

TEST_CASE("formula: * with a scalar scales, with a column on the left scales the rows, else it is the matrix product") {
  BOTH(made([](scope p) { return p.scalar("s") * W(p); }).what == op::mul);
  BOTH(made([](scope p) { return W(p) * p.scalar("s"); }).what == op::mul);
  BOTH(made([](scope p) { return 0.5 * W(p); }).what == op::mul);
  BOTH(made([](scope p) { return column(p) * W(p); }).what == op::mul);
  BOTH(made([](scope p) { return W(p) * p.param("A", p.size("in"), 4); }).what == op::matmul);
  // A column times a row is an outer product; a column of another height does not scale either.
  BOTH(made([](scope p) { return column(p) * p.param("row", 1, p.size("in")); }).what == op::matmul);
  BOTH(made([](scope p) { return p.param("e", p.size("r"), 1) * W(p); }).what == op::matmul);
  BOTH(made([](scope p) { return column(p) * t(column(p)); }).what == op::matmul);
  BOTH(made([](scope p) { return column(p) * column(p); }).what == op::matmul);  // an error, not a product of elements
}

TEST_CASE("formula: mul is elementwise") {
  BOTH(made([](scope p) { return mul(W(p), p.param("row", 1, p.size("in"))); }).what == op::mul);
  BOTH(made([](scope p) { return mul(W(p), W(p)); }).what == op::mul);
}

TEST_CASE("formula: every function makes its op") {
  struct fact {
    op expected;
    op found;
  };
  constexpr fact facts[] = {
      {op::add, made([](scope p) { return W(p) + column(p); }).what},
      {op::sub, made([](scope p) { return W(p) - column(p); }).what},
      {op::div, made([](scope p) { return W(p) / column(p); }).what},
      {op::minimum, made([](scope p) { return min(W(p), column(p)); }).what},
      {op::maximum, made([](scope p) { return max(W(p), column(p)); }).what},
      {op::log, made([](scope p) { return log(W(p)); }).what},
      {op::sin, made([](scope p) { return sin(W(p)); }).what},
      {op::cos, made([](scope p) { return cos(W(p)); }).what},
      {op::erf, made([](scope p) { return erf(W(p)); }).what},
      {op::silu, made([](scope p) { return silu(W(p)); }).what},
      {op::gelu, made([](scope p) { return gelu(W(p)); }).what},
      {op::gelu_tanh, made([](scope p) { return gelu_tanh(W(p)); }).what},
      {op::softmax, made([](scope p) { return softmax(W(p)); }).what},
      {op::permute, made([](scope p) { return permute(p.param("T", 2, 3, 4, 5), 3, 1, 2, 0); }).what},
      {op::slice, made([](scope p) { return slice(W(p), 3, 1, 2); }).what},
      {op::concat, made([](scope p) { return concat(W(p), column(p)); }).what},
      {op::scatter_elements,
       made([](scope p) { return scatter_elements(p.param("v", 7), p.index("i", 7), 4, 5); }).what},
      {op::transpose, made([](scope p) { return t(W(p)); }).what},
      {op::sqrt, made([](scope p) { return sqrt(W(p)); }).what},
      {op::exp, made([](scope p) { return exp(W(p)); }).what},
      {op::tanh, made([](scope p) { return tanh(W(p)); }).what},
      {op::sigmoid, made([](scope p) { return sigmoid(W(p)); }).what},
      {op::relu, made([](scope p) { return relu(W(p)); }).what},
      {op::detach, made([](scope p) { return detach(W(p)); }).what},
      {op::row_dot, made([](scope p) { return row_dot(W(p), W(p)); }).what},
      {op::sqrt, made([](scope p) { return row_norm(W(p)); }).what},
      {op::transpose, made([](scope p) { return col_norm(W(p)); }).what},
      {op::strict_upper, made([](scope p) { return strict_upper(W(p)); }).what},
      {op::inverse, made([](scope p) { return inverse(W(p)); }).what},
      {op::skew, made([](scope p) { return skew(p.param("v", 6, 28), 8); }).what},
      {op::circulant, made([](scope p) { return circulant(W(p)); }).what},
      {op::neumann, made([](scope p) { return neumann(W(p), 5); }).what},
      {op::kron, made([](scope p) { return kron(W(p), W(p)); }).what},
      {op::repeat, made([](scope p) { return repeat(column(p), p.size("in")); }).what},
      {op::topk_softmax, made([](scope p) { return topk_softmax(W(p), 2); }).what},
      {op::reshape, made([](scope p) { return reshape(W(p), p.size("in"), p.size("out")); }).what},
      {op::rotate, made([](scope p) { return rotate(W(p), p.param("R", 1, 2, 8, 8)); }).what},
      {op::rotate, made([](scope p) { return unrotate(W(p), p.param("R", 1, 2, 8, 8)); }).what},
      {op::host, made([](scope p) { return host("f", W(p)); }).what},
      {op::host, made([](scope p) { return host_rows("f", p.size("rows"), W(p)); }).what},
  };
  for (const fact& f : facts) CHECK(std::string(traits_of(f.found).name) == traits_of(f.expected).name);
  BOTH(!made([](scope p) { return rotate(W(p), p.param("R", 1, 2, 8, 8)); }).tb);
  BOTH(made([](scope p) { return unrotate(W(p), p.param("R", 1, 2, 8, 8)); }).tb);
}

TEST_CASE("formula: numbers are left or right operands") {
  SAYS(written([](scope p) { return 2.0 * W(p); }), "2 * W");
  SAYS(written([](scope p) { return W(p) * 2.0; }), "2 * W");  // the same node in both orders
  SAYS(written([](scope p) { return 2.0 + W(p); }), "2 + W");
  SAYS(written([](scope p) { return W(p) + 2.0; }), "W + 2");
  SAYS(written([](scope p) { return 2.0 - W(p); }), "2 - W");
  SAYS(written([](scope p) { return W(p) - 2.0; }), "W - 2");
  SAYS(written([](scope p) { return 2.0 / W(p); }), "2 / W");
  SAYS(written([](scope p) { return W(p) / 2.0; }), "W / 2");
  SAYS(written([](scope p) { return -W(p); }), "-1 * W");
  SAYS(written([](scope p) { return W(p) * 1.0; }), "W");
  constexpr int here = __LINE__;
  BOTH(made([](scope p) { return 2.0 / W(p); }).line == here + 1);
  BOTH(made([](scope p) { return W(p) - 2.0; }).line == here + 2);
  BOTH(made([](scope p) { return -W(p); }).line == here + 3);
}

TEST_CASE("formula: operators that assign") {
  SAYS(written([](scope p) {
         ex y = W(p);
         y += column(p), y -= column(p), y /= column(p), y *= p.param("A", p.size("in"), 3);
         return y;
       }),
       "((W + c - c) / c) @ A");
}

TEST_CASE("formula: sizes are added and subtracted") {
  BOTH(made([](scope p) { return p.param("A", extent(3) + 4, extent(7) - 2); }).d[2] == dim{7});
  BOTH(made([](scope p) { return p.param("A", extent(3) + 4, extent(7) - 2); }).d[3] == dim{5});
  BOTH(made([](scope p) { return p.param("A", p.size("n") + 0, p.size("n") - p.size("n") + 1); }).d[3] == dim{1});
  builder g;
  const scope p{&g};
  const extent rest = p.size("in") - p.size("k");  // requires k <= in
  CHECK_FALSE(rest.d.is_static());
  REQUIRE(g.need.size() == 1);
  CHECK(g.need[0].what == requirement::kind::at_most);
  CHECK(g.need[0].lhs == p.size("k").d);
  CHECK(g.need[0].rhs == p.size("in").d);
}

TEST_CASE("formula: a negative size in a type is an error that names it") {
  builder g;
  const scope p{&g};
  CHECK(p.size("r", -3).d == dim{1});
  CHECK(g.bad.what == formula_error::size_is_negative);
  CHECK(g.bad.number == -3);
  CHECK(std::string(g.bad.name) == "r");
}

TEST_CASE("formula: more leaves") {
  BOTH(made([](scope p) { return p.frozen("m", 7); }).rank == 1);
  BOTH(made([](scope p) { return p.frozen("A", 7, 5, 3); }).rank == 3);
  BOTH(made([](scope p) { return p.frozen("A", 7, 5, 3, 2); }).d[0] == dim{7});
  BOTH(made([](scope p) { return p.index("i", 9); }).what == op::index);
  BOTH(made([](scope p) { return p.index("i", 9); }).d[2] == dim{2});
  BOTH(made([](scope p) { return p.number(p.size("n")); }).what == op::number);
  BOTH(made([](scope p) { return p.number(6); }).what == op::constant);
  BOTH(made([](scope p) { return p.number(6); }).value == 6);
  SAYS(written([](scope p) { return W(p) / sqrt(p.number(p.size("in"))); }), "W / sqrt(in)");
}

TEST_CASE("formula: norms run over the inputs and over the outputs") {
  SAYS(written([](scope p) { return row_norm(W(p)); }), "sqrt(row_dot(W, W))");
  SAYS(written([](scope p) { return col_norm(W(p)); }), "sqrt(row_dot(W', W'))'");
  BOTH(made([](scope p) { return row_norm(W(p)); }).d[3] == dim{1});
  BOTH(made([](scope p) { return col_norm(W(p)); }).d[2] == dim{1});
}

TEST_CASE("formula: leaves have the rank of the tensor in the file") {
  BOTH(made([](scope p) { return p.scalar("s"); }).rank == 0);
  BOTH(made([](scope p) { return p.param("m", 7); }).rank == 1);
  BOTH(made([](scope p) { return p.param("m", 7); }).d[2] == dim{7});  // one size gives a column
  BOTH(made([](scope p) { return p.param("m", 7); }).d[3] == dim{1});
  BOTH(made([](scope p) { return p.param("A", 7, 5); }).rank == 2);
  BOTH(made([](scope p) { return p.param("A", 7, 5, 3); }).rank == 3);
  BOTH(made([](scope p) { return p.param("A", 7, 5, 3, 2); }).rank == 4);
  BOTH(made([](scope p) { return p.param("A", 7, 5, 3, 2); }).d[0] == dim{7});
  BOTH(made([](scope p) { return p.frozen("A", 7, 5); }).what == op::frozen);
  BOTH(made([](scope p) { return p.eye(7); }).what == op::eye);
  BOTH(made([](scope p) { return p.constant(3); }).value == 3);
}

TEST_CASE("formula: a size is a number where the type gives one, else a name") {
  BOTH(made([](scope p) { return p.param("A", p.size("r", 16), 5); }).d[2] == dim{16});
  BOTH(!made([](scope p) { return p.param("A", p.size("r", dyn), 5); }).d[2].is_static());
  BOTH(made([](scope p) { return p.param("A", p.size("r", 16) * 2, p.triangle(8)); }).d[2] == dim{32});
  BOTH(made([](scope p) { return p.param("A", extent(6) / extent(3), p.triangle(8)); }).d[2] == dim{2});
  BOTH(made([](scope p) { return p.param("A", 1, p.triangle(8)); }).d[3] == dim{28});
}

TEST_CASE("formula: an operator records its source line") {
  constexpr int here = __LINE__;
  constexpr node sum = made([](scope p) { return W(p) + column(p); });
  constexpr node product = made([](scope p) { return W(p) * p.param("A", 3, 4); });
  BOTH(sum.line == here + 1);
  BOTH(product.line == here + 2);
  builder g;
  const scope p{&g};
  p.param("A",
          p.size("in") / p.size("b"),  // the line of the divisor
          1);
  inverse(W(p));
  REQUIRE(g.need.size() == 2);
  CHECK(g.need[0].what == requirement::kind::divides);
  CHECK(g.need[0].line == here + 8);
  CHECK(g.need[1].what == requirement::kind::square);
  CHECK(g.need[1].line == here + 10);
}

TEST_CASE("formula: orthogonal marks a value and makes no new one") {
  BOTH(made([](scope p) { return orthogonal(W(p)); }).orthogonal);
  BOTH(!made([](scope p) { return W(p); }).orthogonal);
  BOTH(made([](scope p) { return orthogonal(W(p)); }).what == op::base);
}
