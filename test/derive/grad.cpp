// SPDX-License-Identifier: Apache-2.0
#include "../support/formula_text.h"

using namespace test;

TEST_CASE("grad: LoRA") {
  SAYS(gradient<lora<>>("lora_A.weight"), "(dy @ (scaling * lora_B.weight))' @ x");
  SAYS(gradient<lora<>>("lora_B.weight"), "(dy' @ (x @ lora_A.weight')) * scaling");
  SAYS(gradient<lora<>>("dx"), "dy @ (scaling * lora_B.weight) @ lora_A.weight + dy @ weight");
}

TEST_CASE("grad: the base layer") {
  SAYS(gradient<none>("dx"), "dy @ weight");
  BOTH(derived<linear_kind, none, false>::backward.outs == 1);
  BOTH(derived<embedding_kind, none, false>::backward.outs == 0);  // ids have no gradient, and the table is frozen
}

TEST_CASE("grad: methods whose gradient is short enough to read") {
  SAYS(gradient<ia3>("ia3_l"), "sum_to(dy * (x @ weight'))");
  SAYS(gradient<ia3>("dx"), "(dy * ia3_l) @ weight");
  SAYS(gradient<ia3_feedforward>("ia3_l"), "sum_to((dy @ weight) * x)");
  SAYS(gradient<miss<>>("miss_block"), "fold(x, r)' @ dy");
  SAYS(gradient<miss<>>("dx"), "tile(dy @ miss_block', in) + dy @ weight");
  SAYS((gradient<oft_neumann<dyn, dyn>>("oft_R.weight")),
       "unskew(neumann_grad(skew(oft_R.weight), rotate_grad(x, dy @ weight, neumann(skew(oft_R.weight), terms))))");
  SAYS((gradient<lora_embedding<>, embedding_kind>("lora_embedding_A")),
       "scatter(dy @ (scaling * lora_embedding_B), x)");
  SAYS((gradient<lora<>, conv2d_kind>("dx")),
       "unpatch(dy' @ (scaling * lora_B.weight) @ lora_A.weight + dy' @ weight)");
}

TEST_CASE("grad: frozen tensors and scalars get none") {
  using d = derived<linear_kind, vera<>, true>;
  BOTH(d::backward.result("vera_A") == none_id);
  BOTH(d::backward.result("vera_B") == none_id);
  BOTH(d::backward.result("weight") == none_id);
  BOTH(d::backward.result("bias") == none_id);
  BOTH(d::backward.result("vera_lambda_b") != none_id);
  BOTH(derived<linear_kind, lora<>, false>::backward.result("scaling") == none_id);
}

// ---- detach

namespace {

struct detached_product {
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    return W + p.param("B", W.rows(), r) * detach(p.param("A", r, W.cols()));
  }
};
struct half_detached {  // W' = a W, of which one half is a constant: the gradient is half
  static constexpr ex weight(scope p, ex W) {
    auto a = p.param("a", W.rows());
    return mul(0.5 * a + detach(0.5 * a), W);
  }
};
struct through_host {
  static constexpr ex weight(scope p, ex W) { return W + host("f", p.param("A", W.rows(), W.cols())); }
};
struct around_host {
  static constexpr ex weight(scope p, ex W) { return p.param("l", W.rows(), 1) * detach(host("f", W)); }
};

}  // namespace

TEST_CASE("grad: detach stops it, and only there") {
  SAYS(gradient<detached_product>("A"), "0");
  SAYS(gradient<detached_product>("B"), "dy' @ (x @ A')");
  SAYS(gradient<detached_product>("dx"), "dy @ B @ A + dy @ weight");  // a constant is a value all the same
  BOTH(contains(gradient<half_detached>("a").c_str(), "* 0.5"));
}

TEST_CASE("grad: DoRA's norm is a constant of the backward pass") {
  // A and B get what they would get if the factor m / norm were a number: no derivative of the norm anywhere.
  BOTH(!contains(gradient<dora<>>("lora_A.weight").c_str(), "0.5"));  // the derivative of a root brings a half
  BOTH(contains(gradient<dora<>>("lora_A.weight").c_str(), "@ (scaling * lora_B.weight))' @ x"));
  BOTH(!contains(gradient<dora<>>("lora_magnitude_vector").c_str(), "lora_magnitude_vector"));
}

TEST_CASE("grad: no detach is left in a backward graph") {
  auto left = [](const graph& g) {
    for (int i = 0; i < g.size; ++i)
      if (g.n[i].what == op::detach) return true;
    return false;
  };
  CHECK_FALSE(left(derived<linear_kind, dora<>, false>::backward));
  CHECK_FALSE(left(derived<linear_kind, dora<>, false>::forward));
  CHECK_FALSE(left(derived<conv2d_kind, loha_conv<>, false>::backward));
  CHECK(left(derived<linear_kind, dora<>, false>::literal));  // the oracle keeps it
}

TEST_CASE("grad: what cannot be differentiated is said, with its place") {
  using d = derived<linear_kind, through_host, false>;
  BOTH(d::backward.bad.what == fault::not_differentiable);
  BOTH(d::backward[d::backward.bad.at].what == op::host);
  BOTH(d::backward.bad.line > 0);
  BOTH(d::forward.bad.what == fault::none);
  BOTH(derived<linear_kind, around_host, false>::backward.bad.what == fault::none);
}

// ---- every op once: dx through a function of W needs none of these, so they are checked by name

namespace {

template <op Op> struct through {
  static constexpr ex weight(scope p, ex W) {
    auto a = p.param("a", W.rows(), W.cols());
    return W + ex{p.g, make::unary(*p.g, Op, a.i)};
  }
};
struct subtracted {
  static constexpr ex weight(scope p, ex W) { return W - p.param("a", W.rows(), W.cols()); }
};
struct divided {
  static constexpr ex weight(scope p, ex W) { return W / p.param("a", W.rows(), W.cols()); }
};
struct through_min {
  static constexpr ex weight(scope p, ex W) { return W + min(p.param("a", W.rows(), W.cols()), W); }
};

}  // namespace

TEST_CASE("grad: elementwise functions") {
  SAYS(gradient<through<op::exp>>("a"), "(dy' @ x) * exp(a)");
  SAYS(gradient<through<op::tanh>>("a"), "(dy' @ x) * (1 - tanh(a) * tanh(a))");
  SAYS(gradient<through<op::sigmoid>>("a"), "(dy' @ x) * sigmoid(a) * (1 - sigmoid(a))");
  SAYS(gradient<through<op::relu>>("a"), "(dy' @ x) * step(a)");
  SAYS(gradient<through<op::sqrt>>("a"), "0.5 * (dy' @ x) / sqrt(a)");
  SAYS(gradient<through<op::step>>("a"), "0");
  SAYS(gradient<through<op::upper>>("a"), "strict_upper(dy' @ x)");
  SAYS(gradient<subtracted>("a"), "(-1 * dy)' @ x");
  SAYS(gradient<divided>("a"), "-1 * ((dy' @ x) * (weight / a) / a)");
  SAYS(gradient<through_min>("a"), "(dy' @ x) * step(weight - a)");
}
