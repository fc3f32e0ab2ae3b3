// SPDX-License-Identifier: Apache-2.0
#include <graft/derive/reassociate_wgrads.h>

#include "../support/formula_text.h"
#include "../support/same_graph.h"

using namespace test;

TEST_CASE("grad: LoRA") {
  SAYS(gradient<lora<>>("lora_A.weight"), "(dy @ (scaling * lora_B.weight))' @ x");
  SAYS(gradient<lora<>>("lora_B.weight"), "(dy' @ (x @ lora_A.weight')) * scaling");
  SAYS(gradient<lora<>>("dx"), "dy @ (scaling * lora_B.weight) @ lora_A.weight + dy @ weight");
}

TEST_CASE("grad: a wgrad may be reassociated so that rows are multiplied by a factor before the sum") {
  const builder usual = capture_backward(derived<linear_kind, vera<>, false>::value);
  const builder low_rank = reassociate_wgrads(usual);
  CHECK(first_difference(low_rank, usual) == "");  // no sum gives a matrix of the layer's size
  const builder first = reassociate_wgrads(capture_backward(derived<linear_kind, randlora<>, false>::value));
  int sums = 0;
  for (const node& v : first.n) {
    if (v.what != op::matmul || !v.ta) continue;
    ++sums;
    CHECK(first.is(v.a, op::matmul));  // dy B
    CHECK(is_leaf(first.n[v.b].what));
  }
  CHECK(sums == 1);
}

TEST_CASE("grad: the base layer") {
  SAYS(gradient<none>("dx"), "dy @ weight");
  BOTH(derived<linear_kind, none, false>::backward.outs == 1);
  BOTH(derived<embedding_kind, none, false>::backward.outs == 0);  // ids have no gradient, and the table is frozen
}

TEST_CASE("grad: methods with short gradients") {
  SAYS(gradient<ia3>("ia3_l"), "sum_to(dy * (x @ weight'))");
  SAYS(gradient<ia3>("dx"), "(dy * ia3_l) @ weight");
  SAYS(gradient<ia3_feedforward>("ia3_l"), "sum_to((dy @ weight) * x)");
  SAYS(gradient<miss<>>("miss_block"), "fold_columns(x, r)' @ dy");
  SAYS(gradient<miss<>>("dx"), "repeat(dy @ miss_block', in) + dy @ weight");
  SAYS((gradient<oft_neumann<dyn, dyn>>("oft_R.weight")),
       "unskew(neumann_grad(skew(oft_R.weight), rotate_grad(x, dy @ weight, neumann(skew(oft_R.weight), terms))))");
  SAYS((gradient<lora_embedding<>, embedding_kind>("lora_embedding_A")),
       "scatter(dy @ (scaling * lora_embedding_B), x)");
  SAYS((gradient<lora<>, conv2d_kind>("dx")), "col2im(dy' @ (scaling * lora_B.weight) @ lora_A.weight + dy' @ weight)");
}

TEST_CASE(
    "grad: an orthogonal rotation by one factor takes its gradient from dx, others from the gradient of the result") {
  auto reads_dx = [](const graph& g) {
    for (id i = 0; i < g.size; ++i)
      if (g[i].what == op::rotate_grad) return g[g[i].b].what == op::rotate;
    return false;
  };
  CHECK(reads_dx(derived<linear_kind, oft<>, false>::backward));
  CHECK(reads_dx(derived<linear_kind, oft<dyn, oft_blocks::shared>, false>::backward));
  CHECK_FALSE(reads_dx(derived<linear_kind, oft_neumann<>, false>::backward));
  CHECK_FALSE(reads_dx(derived<linear_kind, boft<8, 2>, false>::backward));
}

TEST_CASE("grad: frozen tensors and scalars have no gradient") {
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

struct detached_product : unnamed {
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    return W + p.param("B", W.rows(), r) * detach(p.param("A", r, W.cols()));
  }
};
struct half_detached : unnamed {  // W' = a W, of which one half is a constant: the gradient is half
  static constexpr ex weight(scope p, ex W) {
    auto a = p.param("a", W.rows());
    return mul(0.5 * a + detach(0.5 * a), W);
  }
};
struct through_host : unnamed {
  static constexpr ex weight(scope p, ex W) { return W + host("f", p.param("A", W.rows(), W.cols())); }
};
struct around_host : unnamed {
  static constexpr ex weight(scope p, ex W) { return p.param("l", W.rows(), 1) * detach(host("f", W)); }
};

}  // namespace

TEST_CASE("grad: detach stops the gradient at its operand only") {
  SAYS(gradient<detached_product>("A"), "0");
  SAYS(gradient<detached_product>("B"), "dy' @ (x @ A')");
  SAYS(gradient<detached_product>("dx"), "dy @ B @ A + dy @ weight");  // the value is unchanged
  BOTH(contains(gradient<half_detached>("a").c_str(), "* 0.5"));
}

TEST_CASE("grad: DoRA's norm is a constant of the backward pass") {
  // A and B get the gradient for a constant factor m / norm: no derivative of the norm appears.
  BOTH(!contains(gradient<dora<>>("lora_A.weight").c_str(), "0.5"));  // the derivative of a root brings a half
  BOTH(contains(gradient<dora<>>("lora_A.weight").c_str(), "@ (scaling * lora_B.weight))' @ x"));
  BOTH(!contains(gradient<dora<>>("lora_magnitude_vector").c_str(), "lora_magnitude_vector"));
}

TEST_CASE("grad: a backward graph contains no detach") {
  auto left = [](const graph& g) {
    for (int i = 0; i < g.size; ++i)
      if (g.n[i].what == op::detach) return true;
    return false;
  };
  CHECK_FALSE(left(derived<linear_kind, dora<>, false>::backward));
  CHECK_FALSE(left(derived<linear_kind, dora<>, false>::forward));
  CHECK_FALSE(left(derived<conv2d_kind, loha_conv<>, false>::backward));
  CHECK(left(derived<linear_kind, dora<>, false>::literal));  // the oracle evaluates the formula as written
}

TEST_CASE("grad: an operation without a derivative is an error with its node and line") {
  using d = derived<linear_kind, through_host, false>;
  BOTH(d::backward.bad.what == formula_error::not_differentiable);
  BOTH(d::backward[d::backward.bad.at].what == op::host);
  BOTH(d::backward.bad.line > 0);
  BOTH(d::forward.bad.what == formula_error::none);
  BOTH(derived<linear_kind, around_host, false>::backward.bad.what == formula_error::none);
}

// ---- every op once: dx through a function of W needs none of these, so the gradients are checked by name

namespace {

template <op Op> struct through : unnamed {
  static constexpr ex weight(scope p, ex W) {
    auto a = p.param("a", W.rows(), W.cols());
    return W + ex{p.g, make_node::unary(*p.g, Op, a.i)};
  }
};
struct subtracted : unnamed {
  static constexpr ex weight(scope p, ex W) { return W - p.param("a", W.rows(), W.cols()); }
};
struct divided : unnamed {
  static constexpr ex weight(scope p, ex W) { return W / p.param("a", W.rows(), W.cols()); }
};
struct through_max : unnamed {
  static constexpr ex weight(scope p, ex W) { return W + max(p.param("a", W.rows(), W.cols()), W); }
};
struct through_permute : unnamed {  // [r, out / r, in] to [out / r, r, in]
  static constexpr ex weight(scope p, ex W) {
    const extent r = p.size("r"), parts = W.rows() / r;
    return W + reshape(permute(p.param("a", r, parts, W.cols()), 0, 2, 1, 3), W.rows(), W.cols());
  }
};
struct through_slice : unnamed {
  static constexpr ex weight(scope p, ex W) {
    return W + slice(p.param("a", W.rows(), W.cols() + p.size("k")), 3, p.size("k"), W.cols());
  }
};
struct through_concat : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const extent k = p.size("k");
    return W + reshape(concat(p.param("a", W.rows(), k), p.param("b", W.rows(), W.cols() - k)), W.rows(), W.cols());
  }
};
struct through_place : unnamed {
  static constexpr ex weight(scope p, ex W) {
    const extent n = p.size("n");
    return W + scatter_elements(p.param("values", n), p.index("index", n), W.rows(), W.cols());
  }
};
struct through_number : unnamed {
  static constexpr ex weight(scope p, ex W) { return W + p.number(W.cols()) * p.param("a", W.rows()); }
};
struct through_min : unnamed {
  static constexpr ex weight(scope p, ex W) { return W + min(p.param("a", W.rows(), W.cols()), W); }
};

}  // namespace

TEST_CASE("grad: elementwise functions") {
  SAYS(gradient<through<op::exp>>("a"), "(dy' @ x) * exp(a)");
  SAYS(gradient<through<op::tanh>>("a"), "(dy' @ x) * (1 - tanh(a) * tanh(a))");
  SAYS(gradient<through<op::sigmoid>>("a"), "(dy' @ x) * sigmoid(a) * (1 - sigmoid(a))");
  SAYS(gradient<through<op::relu>>("a"), "(dy' @ x) * heaviside(a)");
  SAYS(gradient<through<op::sqrt>>("a"), "0.5 * (dy' @ x) / sqrt(a)");
  SAYS(gradient<through<op::log>>("a"), "(dy' @ x) / a");
  SAYS(gradient<through<op::sin>>("a"), "(dy' @ x) * cos(a)");
  SAYS(gradient<through<op::cos>>("a"), "-1 * (dy' @ x) * sin(a)");
  SAYS(gradient<through<op::erf>>("a"), "(dy' @ x) * 1.128379 * exp(-1 * a * a)");
  SAYS(gradient<through<op::silu>>("a"), "(dy' @ x) * (sigmoid(a) + silu(a) * (1 - sigmoid(a)))");
  SAYS(gradient<through<op::gelu>>("a"),
       "(dy' @ x) * (0.5 + 0.5 * erf(0.707106 * a) + a * 0.398942 * exp(-0.5 * a * a))");
  SAYS(gradient<through<op::softmax>>("a"), "softmax_grad(softmax(a), dy' @ x)");
  SAYS(gradient<through<op::heaviside>>("a"), "0");
  SAYS(gradient<through<op::strict_upper>>("a"), "strict_upper(dy' @ x)");
  SAYS(gradient<subtracted>("a"), "-1 * (dy' @ x)");
  SAYS(gradient<divided>("a"), "-1 * ((dy' @ x) * (weight / a) / a)");
  SAYS(gradient<through_min>("a"), "(dy' @ x) * heaviside(weight - a)");
  SAYS(gradient<through_max>("a"), "(dy' @ x) * heaviside(a - weight)");
}

TEST_CASE("grad: rearrangements are inverted") {
  SAYS(gradient<through_permute>("a"), "permute(dy' @ x, 0, 2, 1, 3)");
  SAYS(gradient<through_slice>("a"), "pad(dy' @ x, axis 3)");
  SAYS(gradient<through_concat>("a"), "slice(dy' @ x, axis 3 from 0 size k)");
  SAYS(gradient<through_concat>("b"), "slice(dy' @ x, axis 3 from k size in - k)");
  SAYS(gradient<through_place>("values"), "gather_elements(dy' @ x, index)");
  SAYS(gradient<through_number>("a"), "sum_to(dy' @ x) * in");
}

// ---- large formulas

namespace {

constexpr const char* forty[] = {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3",
                                 "b4", "b5", "b6", "b7", "b8", "b9", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7",
                                 "c8", "c9", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9"};
struct mixture : unnamed {
  static constexpr ex weight(scope p, ex W) {
    for (const char* scale : forty) W = p.param(scale, W.rows(), 1) * W;
    return W;
  }
};
struct squared_often : unnamed {  // each value is read twice by the next: 2^40 paths, 40 nodes
  static constexpr ex weight(scope p, ex W) {
    ex V = p.param("a", W.rows(), W.cols());
    for (int i = 0; i < 40; ++i) V = mul(V, V);
    return W + V;
  }
};

}  // namespace

TEST_CASE("grad: forty parameters have forty gradients") {
  const builder b = capture_backward(layer_of<linear_kind, mixture, false>());
  CHECK(b.out.size() == 41);
  for (const char* name : forty) {
    INFO(std::string(name));
    REQUIRE(b.result(name) != none_id);
    CHECK(same_shape(b.n[b.result(name)], b.n[b.find(name)]));
  }
}

TEST_CASE("grad: a value that is read twice at every step remains one node") {
  const layer_formula f = layer_of<linear_kind, squared_often, false>();
  CHECK(capture_forward(f).n.size() == 45);  // x, W, a, forty squares, a sum, a product
  CHECK(capture_backward(f).bad.what == formula_error::none);
  CHECK(unmerge_facts_of(f).weight);
}
