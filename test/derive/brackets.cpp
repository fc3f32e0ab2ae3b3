// SPDX-License-Identifier: Apache-2.0
// Where the brackets of a formula stand does not decide what is built after load.
#include "../support/dense.h"
#include "../support/formula_text.h"

using namespace test;

namespace {

struct factors {
  ex A, B, D, w;
};
constexpr factors leaves(scope p, ex W) {
  const extent r = p.size("r");
  return {p.param("A", r, W.cols()), p.param("B", W.rows(), r), p.param("D", r, r), p.frozen("w", 1, W.cols())};
}
struct scaled_outside : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const factors f = leaves(p, W);
    return W + mul(f.B * f.D * f.A, f.w);
  }
};
struct scaled_inside : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const factors f = leaves(p, W);
    return W + f.B * mul(f.D * f.A, f.w);
  }
};
struct scaled_inside_right : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const factors f = leaves(p, W);
    return W + mul(f.B * (f.D * f.A), f.w);
  }
};
struct masked : unnamed {  // a second dense matrix beside W
  static constexpr ex weight(scope p, ex W) { return W + mul(p.frozen("mask", W.rows(), W.cols()), W); }
};
struct dense : unnamed {
  static constexpr ex weight(scope p, ex W) { return W + p.param("M", W.rows(), W.cols()); }
};
struct dense_minus : unnamed {
  static constexpr ex weight(scope p, ex W) { return W - tanh(p.param("M", W.rows(), W.cols())); }
};

template <class A> builder forward() { return capture_forward(layer_of<linear_kind, A, false>()); }
template <class A> builder backward() { return capture_backward(layer_of<linear_kind, A, false>()); }
// Products of a call whose right operand is no longer than a row of the weight is high, by what they multiply.
int products(const graph& g, bool with_sums) {
  const stages when = schedule(g);
  int n = 0;
  for (id i = 0; i < g.size; ++i)
    n += g[i].what == op::matmul && when.of[i] == stage::data && (with_sums || when.by_token[i]) ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("brackets: a factor of the columns outside or inside a product is the same side branch") {
  for (const builder& g : {forward<scaled_outside>(), forward<scaled_inside>(), forward<scaled_inside_right>()}) {
    INFO(std::string(written(g, "y").c_str()));
    CHECK(weight_sized(g) == none_id);
    CHECK(products(g, true) == 3);  // x W', down, up: D is part of one of the factors
    CHECK(g.n[g.result("y")].what == op::add);
  }
  for (const builder& g : {backward<scaled_outside>(), backward<scaled_inside>(), backward<scaled_inside_right>()})
    CHECK(weight_sized(g) == none_id);
}

TEST_CASE("brackets: x P + x Q is x (P + Q) where both are matrices known before the data") {
  SAYS_NOW(written(forward<dense>(), "y"), "x @ (weight + M)'");
  SAYS_NOW(written(forward<dense_minus>(), "y"), "x @ (weight - tanh(M))'");
  CHECK(products(forward<masked>(), true) == 1);
  CHECK(products(forward<dense>(), true) == 1);
}

TEST_CASE("brackets: dx through W + M is one product") {
  CHECK(products(backward<masked>(), false) == 1);
  CHECK(products(backward<dense>(), false) == 1);
  CHECK(products(backward<dense_minus>(), false) == 1);
  SAYS_NOW(written(backward<dense>(), "dx"), "dy @ (weight + M)");
  CHECK(products(backward<dense>(), true) == 2);  // and the gradient of M
}

TEST_CASE("brackets: products with different inputs, or a matrix that depends on the data, stay two") {
  auto made = [](auto f) {
    builder g;
    const scope p{&g};
    const extent n = p.size("n", dyn, 4096);
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n), z = p.leaf(op::input, "z", 2, 1, 1, p.tokens(), n);
    g.give(f(x, z, p.param("P", n, n), p.param("Q", n, n)).i, "y");
    return simplify(g);
  };
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return x * P + z * Q; }), "y"), "x @ P + z @ Q");
  SAYS_NOW(written(made([](ex x, ex, ex P, ex Q) { return x * P + x * t(Q); }), "y"), "x @ P + x @ Q'");
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return z + x * P + x * Q; }), "y"), "z + x @ (P + Q)");
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return x * P + z + x * Q; }), "y"), "x @ (P + Q) + z");
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return x * P - z - x * Q; }), "y"), "x @ P - z - x @ Q");
}

TEST_CASE("brackets: matrices that are smaller than their products are added first, whatever they depend on") {
  auto made = [](auto f) {
    builder g;
    const scope p{&g};
    const extent n = p.size("n", dyn, 4096), r = p.size("r", dyn, 8);
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), r), U = p.param("U", n, r);
    g.give(f(U, t(x) * x).i, "y");
    return simplify(g);
  };
  SAYS_NOW(written(made([](ex U, ex G) { return U * G + U * t(strict_upper(G)); }), "y"),
           "U @ (x' @ x + strict_upper(x' @ x)')");
  SAYS_NOW(written(made([](ex U, ex G) { return t(U) * (U * G) + t(U) * (U * strict_upper(G)); }), "y"),
           "U' @ (U @ (x' @ x)) + U' @ (U @ strict_upper(x' @ x))");
}
