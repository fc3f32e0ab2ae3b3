// SPDX-License-Identifier: Apache-2.0
// What forward keeps for backward, as text; that the pair says the same is a law of the executor.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/derive/keep.h>

#include <string>

#include "../support/formula_text.h"

using namespace test;

namespace {

template <class Adapter, class Kind = linear_kind> kept_pair pair_of() {
  using d = derived<Kind, Adapter, false>;
  return keep(d::forward, d::backward);
}
std::string says(const graph& g, int output) { return expression(g, g.out[output].at, {nullptr, 40}).c_str(); }
// A nonlinear function of a sum of two products that the gradients read.
builder forward_of_block() {
  builder g;
  const scope p{&g};
  auto n = p.size("n"), m = p.size("m");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  const ex h = x * t(p.param("A", m, n)) + x * t(p.param("C", m, n));
  g.give((mul(silu(h), tanh(h)) * t(p.param("B", n, m))).i, "y");
  return canonical(g);
}

}  // namespace

TEST_CASE("keep: the rank-r product of LoRA, and not the base product") {
  const kept_pair p = pair_of<lora<>>();
  const graph f = p.forward, b = p.backward;
  REQUIRE(f.outs == 2);
  CHECK(says(f, 0) == "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)'");
  CHECK(says(f, 1) == "x @ lora_A.weight'");
  CHECK(says(b, b.find_output("lora_B.weight")) == "(dy' @ 0.kept) * scaling");
  CHECK(says(b, b.find_output("dx")) == "dy @ (scaling * lora_B.weight) @ lora_A.weight + dy @ weight");
  REQUIRE(p.leaf.size() == 1);
  CHECK(p.leaf[0] == b.find("0.kept"));
}

TEST_CASE("keep: the base product where a gradient reads it") {
  const kept_pair ia = pair_of<ia3>(), dora_pair = pair_of<dora<>>();
  CHECK(says(ia.forward, 1) == "x @ weight'");
  CHECK(says(ia.backward, graph(ia.backward).find_output("ia3_l")) == "sum_to(dy * 0.kept)");
  const graph f = dora_pair.forward;
  REQUIRE(f.outs == 3);
  CHECK(says(f, 1) == "x @ lora_A.weight'");
  // The sum of the two products, and not each of them.
  CHECK(says(f, 2) == "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)'");
}

TEST_CASE("keep: nothing where backward computes nothing again, or only what is cheap") {
  CHECK(graph(pair_of<none>().forward).outs == 1);
  CHECK(graph(pair_of<miss<>>().forward).outs == 1);  // fold(x)
  CHECK((graph(pair_of<lora_embedding<>, embedding_kind>().forward).outs) <= 2);
}

TEST_CASE("keep: activations are computed again from the one value that is kept") {
  const builder f = forward_of_block();
  const kept_pair p = keep(f, canonical(grad(f)));
  const graph g = p.forward;
  REQUIRE(g.outs == 2);
  CHECK(says(g, 1) == "x @ A' + x @ C'");
  const std::string b = says(p.backward, graph(p.backward).find_output("B"));
  CHECK(b == "dy' @ (silu(0.kept) * tanh(0.kept))");
}

TEST_CASE("keep: a product of two kept values as well, where a product of forward reads it") {
  builder g;
  const scope p{&g};
  auto n = p.size("n"), m = p.size("m");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  const ex gate = x * t(p.param("G", m, n)), up = x * t(p.param("U", m, n));
  g.give((mul(silu(gate), up) * t(p.param("D", n, m))).i, "y");
  const builder f = canonical(g);
  const kept_pair pair = keep(f, canonical(grad(f)));
  REQUIRE(graph(pair.forward).outs == 4);
  CHECK(says(pair.forward, 1) == "x @ G'");
  CHECK(says(pair.forward, 2) == "x @ U'");
  CHECK(says(pair.forward, 3) == "silu(x @ G') * (x @ U')");
  CHECK(says(pair.backward, graph(pair.backward).find_output("D")) == "dy' @ 2.kept");
}

TEST_CASE("keep: a norm that a product of forward reads, and no norm where no gradient does") {
  for (const bool trained : {true, false}) {
    builder g;
    const scope p{&g};
    auto n = p.size("n");
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n), eps = p.scalar("eps");
    const ex weight = trained ? p.param("A", n, n) : p.frozen("A", n, n);
    g.give((ex{&g, make::normalize(g, x.i, eps.i, true)} * t(weight)).i, "y");
    const builder f = canonical(g);
    const kept_pair pair = keep(f, canonical(grad(f)));
    CHECK(graph(pair.forward).outs == (trained ? 2 : 1));
    if (trained) CHECK(says(pair.backward, graph(pair.backward).find_output("A")) == "dy' @ 0.kept");
  }
}

TEST_CASE("keep: a sum with the row it is added to, and not the summand that nothing else reads") {
  builder g;
  const scope p{&g};
  auto n = p.size("n");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n), h = x + x * t(p.param("A", n, n));
  g.give((silu(h) * t(p.param("B", n, n))).i, "y");
  const builder f = canonical(g);
  const kept_pair pair = keep(f, canonical(grad(f)));
  REQUIRE(graph(pair.forward).outs == 2);
  CHECK(says(pair.forward, 1) == "x + x @ A'");
  CHECK(says(pair.backward, graph(pair.backward).find_output("B")) == "dy' @ silu(0.kept)");
}

struct tuned : adapted<llama, on<"o_proj", lora<8>>> {};
TEST_CASE("keep: says which value attention gave, and of a block without one that there is none") {
  const block_value v = value_of<tuned>();
  const builder forward = capture_forward(v.formula, v.how);
  const kept_pair pair = keep(forward, capture_backward(v.formula, v.how));
  REQUIRE(pair.attended >= 0);
  const graph f = pair.forward;
  CHECK(f[f.out[forward.out.size() + pair.attended].at].what == op::attention);
  CHECK(pair_of<lora<>>().attended == -1);
}

TEST_CASE("keep: only the outputs that were asked for") {
  const graph& all = derived<linear_kind, lora<>, false>::backward;
  sequence<bool> asked(all.outs, false);
  asked[all.find_output("lora_B.weight")] = true;
  const builder part = asked_outputs(all, asked);
  const graph g = part;
  REQUIRE(g.outs == 1);
  CHECK(says(g, 0) == "(dy' @ (x @ lora_A.weight')) * scaling");
  CHECK(g.find("weight") == none_id);  // the base weight is only in dx
  CHECK(g.find("x") >= 0);
}
