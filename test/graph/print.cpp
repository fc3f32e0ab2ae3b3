// SPDX-License-Identifier: Apache-2.0
#include <graft/graph/formula.h>
#include <graft/graph/print.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

template <class F> constexpr text written(F f, int depth = 12) {
  builder g{};
  const scope p{&g};
  const ex made = f(p);
  return expression(g, made.i, {nullptr, depth});
}
template <class F> constexpr text shape(F f) {
  builder g{};
  const scope p{&g};
  const ex made = f(p);
  text t;
  print_shape(t, g, made.i);
  return t;
}
constexpr text number(double v) {
  text t;
  print_number(t, v);
  return t;
}
constexpr ex a(scope p) { return p.param("a", 4, 4); }
constexpr ex b(scope p) { return p.param("b", 4, 4); }
constexpr ex c(scope p) { return p.param("c", 4, 4); }

}  // namespace

TEST_CASE("print: brackets only where the order needs them") {
  SAYS(written([](scope p) { return a(p) + b(p) + c(p); }), "a + b + c");
  SAYS(written([](scope p) { return a(p) - (b(p) - c(p)); }), "a - (b - c)");
  SAYS(written([](scope p) { return (a(p) - b(p)) - c(p); }), "a - b - c");
  SAYS(written([](scope p) { return a(p) - (b(p) + c(p)); }), "a - (b + c)");
  SAYS(written([](scope p) { return a(p) * (b(p) + c(p)); }), "a @ (b + c)");
  SAYS(written([](scope p) { return a(p) * b(p) + c(p); }), "a @ b + c");
  SAYS(written([](scope p) { return a(p) * b(p) * c(p); }), "a @ b @ c");
  SAYS(written([](scope p) { return a(p) * (b(p) * c(p)); }), "a @ (b @ c)");
  SAYS(written([](scope p) { return mul(a(p), b(p)) * c(p); }), "(a * b) @ c");
  SAYS(written([](scope p) { return mul(a(p), b(p) * c(p)); }), "a * (b @ c)");
  SAYS(written([](scope p) { return mul(a(p), b(p)) / c(p); }), "a * b / c");
  SAYS(written([](scope p) { return a(p) / mul(b(p), c(p)); }), "a / (b * c)");
  SAYS(written([](scope p) { return a(p) / (b(p) / c(p)); }), "a / (b / c)");
  SAYS(written([](scope p) { return (a(p) + b(p)) / c(p); }), "(a + b) / c");
}

TEST_CASE("print: transpositions") {
  SAYS(written([](scope p) { return t(a(p)); }), "a'");
  SAYS(written([](scope p) { return t(a(p) + b(p)); }), "(a + b)'");
  SAYS(written([](scope p) { return t(a(p)) * t(b(p)); }), "a' @ b'");
  SAYS(written([](scope p) { return t(a(p) * b(p)); }), "(a @ b)'");
  SAYS(written([](scope p) { return a(p) * t(b(p) + c(p)); }), "a @ (b + c)'");
}

TEST_CASE("print: functions, and operations that print as their operand") {
  SAYS(written([](scope p) { return detach(a(p)); }), "const(a)");
  SAYS(written([](scope p) { return reshape(a(p), 2, 8); }), "a");  // a reshape prints as its operand
  SAYS(written([](scope p) { return min(a(p), b(p)); }), "min(a, b)");
  SAYS(written([](scope p) { return inverse(a(p) + b(p)); }), "inverse(a + b)");
  SAYS(written([](scope p) { return strict_upper(a(p)); }), "strict_upper(a)");
  SAYS(written([](scope p) { return neumann(a(p), 5); }), "neumann(a, 5)");
  SAYS(written([](scope p) { return neumann(a(p), p.size("terms")); }), "neumann(a, terms)");
  SAYS(written([](scope p) { return topk_softmax(a(p), 2); }), "topk_softmax(a, 2)");
  SAYS(written([](scope p) { return rotate(a(p), p.param("R", 1, 2, 2, 2)); }), "rotate(a, R)");
  SAYS(written([](scope p) { return unrotate(a(p), p.param("R", 1, 2, 2, 2)); }), "rotate_back(a, R)");
  SAYS(written([](scope p) { return host("my_function", a(p)); }), "my_function(a)");
  SAYS(written([](scope p) { return max(a(p), b(p)); }), "max(a, b)");
  SAYS(written([](scope p) { return log(a(p)); }), "log(a)");
  SAYS(written([](scope p) { return sin(a(p)) + cos(a(p)); }), "sin(a) + cos(a)");
  SAYS(written([](scope p) { return erf(a(p)); }), "erf(a)");
  SAYS(written([](scope p) { return silu(a(p)); }), "silu(a)");
  SAYS(written([](scope p) { return gelu(a(p)); }), "gelu(a)");
  SAYS(written([](scope p) { return gelu_tanh(a(p)); }), "gelu_tanh(a)");
  SAYS(written([](scope p) { return softmax(a(p) * b(p)); }), "softmax(a @ b)");
  SAYS(written([](scope p) { return permute(p.param("T", 2, 3, 4, 5), 2, 0, 3, 1); }), "permute(T, 2, 0, 3, 1)");
  SAYS(written([](scope p) { return slice(a(p), 3, 1, p.size("k")); }), "slice(a, axis 3 from 1 size k)");
  SAYS(written([](scope p) { return concat(a(p), b(p), 2); }), "concat(a, b, axis 2)");
  SAYS(written([](scope p) { return scatter_elements(p.param("v", 7), p.index("i", 7), 4, 4); }),
       "scatter_elements(v, i)");
  SAYS(written([](scope p) { return a(p) * p.number(p.size("n") * 2); }), "a * (2 n)");
  SAYS(written([](scope p) { return p.eye(4) - a(p); }), "I - a");
}

TEST_CASE("print: below the depth limit a value is printed as its number") {
  SAYS(written([](scope p) { return exp(sqrt(tanh(a(p)))); }, 12), "exp(sqrt(tanh(a)))");
  SAYS(written([](scope p) { return exp(sqrt(tanh(a(p)))); }, 2), "exp(sqrt(t1))");
  SAYS(written([](scope p) { return exp(sqrt(tanh(a(p)))); }, 1), "exp(t2)");
  SAYS(written([](scope p) { return exp(a(p)); }, 1), "exp(a)");  // leaves keep their names
}

TEST_CASE("print: a value with a name is printed by it") {
  builder g;
  const scope p{&g};
  const ex y = exp(sqrt(tanh(a(p))));
  bool named[4]{};
  named[2] = true;
  named[3] = true;  // the root is always printed as an expression
  CHECK(std::string(expression(g, y.i, {named, 12}).c_str()) == "exp(t2)");
}

TEST_CASE("print: numbers") {
  SAYS(number(0), "0");
  SAYS(number(1), "1");
  SAYS(number(-1), "-1");
  SAYS(number(0.5), "0.5");
  SAYS(number(-2.25), "-2.25");
  SAYS(number(0.7), "0.7");
  SAYS(number(1e6), "1000000");
  SAYS(number(1.0 / 3), "0.333333");
  SAYS(written([](scope p) { return 0.5 * a(p); }), "0.5 * a");
}

TEST_CASE("print: a very small number is not written as \"0.\"") { CHECK(std::string(number(1e-8).c_str()) != "0."); }

TEST_CASE("print: shapes as a file lists them") {
  SAYS(shape([](scope p) { return p.param("m", p.size("out")); }), "[out]");
  SAYS(shape([](scope p) { return p.param("A", p.size("r"), 5); }), "[r, 5]");
  SAYS(shape([](scope p) { return p.param("A", 2, 3, p.size("b"), p.size("b")); }), "[2, 3, b, b]");
  SAYS(shape([](scope p) { return exp(p.param("m", p.size("out"))); }), "[out, 1]");  // no leaf: rows and columns
  SAYS(shape([](scope p) { return p.param("A", p.size("in") / p.size("b"), p.triangle(p.size("b"))); }),
       "[in/b, b(b-1)/2]");
  SAYS(shape([](scope p) { return p.param("A", p.size("in") * p.size("b"), 1); }), "[b in, 1]");
  SAYS(shape([](scope p) { return p.param("A", (p.size("in") / p.size("b")) * p.size("r"), 1); }), "[r (in/b), 1]");
}
