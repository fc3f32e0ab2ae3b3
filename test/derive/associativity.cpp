// SPDX-License-Identifier: Apache-2.0
// Where the brackets of a formula stand does not change what is computed after load.
#include <utility>

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
// f ⊙ (s B A) with brackets, scalars, transpositions and further factors in every valid order: `Form` selects one.
template <int Form> struct scaled_low_rank : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const factors l = leaves(p, W);
    const ex A = l.A, B = l.B, columns = l.w, f = p.param("f", W.rows()), s = p.scalar("scaling");
    switch (Form) {
      case 0: return W + (f * B) * A;
      case 1: return W + f * (B * A);
      case 2: return W + s * (f * (B * A));
      case 3: return W + f * (s * (B * A));
      case 4: return W + (s * f) * (B * A * 2.0);
      case 5: return W + mul(s * (B * A), columns);
      case 6: return W + f * mul(B * A, columns);
      case 7: return W + mul(f * (B * A), columns);
      case 8: return W - f * (s * t(t(A) * t(B)));
      case 9: return W + (s * (B * A)) / f;
      case 10: return W + f * ((B * A) / s);
      case 11: return W + (B * A) / s;
      default: return W + f * (s * (B * l.D * A));
    }
  }
};
constexpr int scaled_forms = 13;
// A sum of two updates, and a product of two, with one factor on the left.
struct scaled_sum : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const factors l = leaves(p, W);
    const ex A2 = p.param("A2", l.A.rows(), W.cols()), B2 = p.param("B2", W.rows(), l.A.rows());
    return W + p.param("f", W.rows()) * (l.B * l.A - 2.0 * (B2 * A2));
  }
};
struct scaled_hadamard : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const factors l = leaves(p, W);
    const ex A2 = p.param("A2", l.A.rows(), W.cols()), B2 = p.param("B2", W.rows(), l.A.rows());
    return W + p.param("f", W.rows()) * (p.scalar("scaling") * mul(l.B * l.A, B2 * A2));
  }
};
struct masked : unnamed {  // a second dense matrix of W's size
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
// The number of matrix products of a call, without or with those that sum over tokens.
int products(const graph& g, bool with_sums) {
  const stages when = schedule(g);
  int n = 0;
  for (id i = 0; i < g.size; ++i)
    n += g[i].what == op::matmul && when.of[i] == stage::call && (with_sums || when.has_token_rows[i]) ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("brackets: a factor of the columns outside or inside a product gives the same low-rank branch") {
  for (const builder& g : {forward<scaled_outside>(), forward<scaled_inside>(), forward<scaled_inside_right>()}) {
    INFO(std::string(written(g, "y").c_str()));
    CHECK(find_weight_sized(g) == none_id);
    CHECK(products(g, true) == 3);  // base, shrink and expand: D is multiplied into a factor
    CHECK(g.n[g.result("y")].what == op::add);
  }
  for (const builder& g : {backward<scaled_outside>(), backward<scaled_inside>(), backward<scaled_inside_right>()})
    CHECK(find_weight_sized(g) == none_id);
}

namespace {
// Checks that the update is a branch that the GEMM can hold: y = x W' + (…) C' with C computed from parameters alone.
template <class A> void check_branch() {
  const builder y = forward<A>(), d = backward<A>();
  INFO(std::string(written(y, "y").c_str()));
  CHECK(find_weight_sized(y) == none_id);
  CHECK(find_weight_sized(d) == none_id);
  const node sum = y.n[y.result("y")];
  const bool added = sum.what == op::add || sum.what == op::sub;
  REQUIRE(added);
  CHECK(y.n[sum.b].what == op::matmul);
  const graph g = y;
  CHECK(schedule(g).of[y.n[sum.b].b] != stage::call);
}
template <int... Form> void check_branches(std::integer_sequence<int, Form...>) {
  (check_branch<scaled_low_rank<Form>>(), ...);
}
}  // namespace

TEST_CASE("brackets: a factor of the rows or columns at any position is multiplied into a factor of the update") {
  check_branches(std::make_integer_sequence<int, scaled_forms>{});
  check_branch<scaled_hadamard>();
  CHECK(find_weight_sized(forward<scaled_sum>()) == none_id);
  CHECK(products(forward<scaled_sum>(), true) == 5);  // base, and shrink and expand of each update
}
TEST_CASE("brackets: a gather of rows moves the factor of each row onto the update's factor") {
  const builder g = capture_forward(layer_of<embedding_kind, scaled_low_rank<3>, false>());
  INFO(std::string(written(g, "y").c_str()));
  CHECK(find_weight_sized(g) == none_id);
}

TEST_CASE("brackets: x P + x Q is x (P + Q) if neither matrix depends on the data") {
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
  CHECK(products(backward<dense>(), true) == 2);  // dx and the gradient of M
}

TEST_CASE("brackets: two products remain if their inputs differ or a matrix depends on the data") {
  auto made = [](auto f) {
    builder g;
    const scope p{&g};
    const extent n = p.size("n", dyn, 4096);
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n), z = p.leaf(op::input, "z", 2, 1, 1, p.tokens(), n);
    g.add_output(f(x, z, p.param("P", n, n), p.param("Q", n, n)).i, "y");
    return simplify(g);
  };
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return x * P + z * Q; }), "y"), "x @ P + z @ Q");
  SAYS_NOW(written(made([](ex x, ex, ex P, ex Q) { return x * P + x * t(Q); }), "y"), "x @ P + x @ Q'");
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return z + x * P + x * Q; }), "y"), "z + x @ (P + Q)");
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return x * P + z + x * Q; }), "y"), "x @ (P + Q) + z");
  SAYS_NOW(written(made([](ex x, ex z, ex P, ex Q) { return x * P - z - x * Q; }), "y"), "x @ P - z - x @ Q");
}

TEST_CASE("brackets: matrices that are smaller than their products are added first, also if they depend on the data") {
  auto made = [](auto f) {
    builder g;
    const scope p{&g};
    const extent n = p.size("n", dyn, 4096), r = p.size("r", dyn, 8);
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), r), U = p.param("U", n, r);
    g.add_output(f(U, t(x) * x).i, "y");
    return simplify(g);
  };
  SAYS_NOW(written(made([](ex U, ex G) { return U * G + U * t(strict_upper(G)); }), "y"),
           "U @ (x' @ x + strict_upper(x' @ x)')");
  SAYS_NOW(written(made([](ex U, ex G) { return t(U) * (U * G) + t(U) * (U * strict_upper(G)); }), "y"),
           "U' @ (U @ (x' @ x)) + U' @ (U @ strict_upper(x' @ x))");
}
