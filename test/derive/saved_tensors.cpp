// SPDX-License-Identifier: Apache-2.0
// The tensors that forward saves for backward, as text; that the pair computes the same is tested with the executor.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/derive/saved_tensors.h>

#include <string>

#include "../support/formula_text.h"

using namespace test;

namespace {

template <class Adapter, class Kind = linear_kind> saved_pair pair_of() {
  using d = derived<Kind, Adapter, false>;
  return select_saved_tensors(d::forward, d::backward);
}
std::string says(const graph& g, int output) { return expression(g, g.out[output].at, {nullptr, 40}).c_str(); }
// A nonlinear function of a sum of two products that the gradients read.
builder forward_of_block() {
  builder g;
  const scope p{&g};
  auto n = p.size("n"), m = p.size("m");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  const ex h = x * t(p.param("A", m, n)) + x * t(p.param("C", m, n));
  g.add_output((mul(silu(h), tanh(h)) * t(p.param("B", n, m))).i, "y");
  return canonical(g);
}

}  // namespace

TEST_CASE("saved tensors: the rank-r product of LoRA, and not the base product") {
  const saved_pair p = pair_of<lora<>>();
  const graph f = p.forward, b = p.backward;
  REQUIRE(f.outs == 2);
  CHECK(says(f, 0) == "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)'");
  CHECK(says(f, 1) == "x @ lora_A.weight'");
  CHECK(says(b, b.find_output("lora_B.weight")) == "(dy' @ 0.saved) * scaling");
  CHECK(says(b, b.find_output("dx")) == "dy @ (scaling * lora_B.weight) @ lora_A.weight + dy @ weight");
  REQUIRE(p.leaf.size() == 1);
  CHECK(p.leaf[0] == b.find("0.saved"));
}

TEST_CASE("saved tensors: the base product where a gradient reads it") {
  const saved_pair ia = pair_of<ia3>(), dora_pair = pair_of<dora<>>();
  CHECK(says(ia.forward, 1) == "x @ weight'");
  CHECK(says(ia.backward, graph(ia.backward).find_output("ia3_l")) == "sum_to(dy * 0.saved)");
  const graph f = dora_pair.forward;
  REQUIRE(f.outs == 3);
  CHECK(says(f, 1) == "x @ lora_A.weight'");
  // The sum of the two products is saved, not each of them.
  CHECK(says(f, 2) == "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)'");
}

TEST_CASE("saved tensors: none if backward would recompute nothing, or only cheap values") {
  CHECK(graph(pair_of<none>().forward).outs == 1);
  CHECK(graph(pair_of<miss<>>().forward).outs == 1);  // fold_columns(x)
  CHECK((graph(pair_of<lora_embedding<>, embedding_kind>().forward).outs) <= 2);
}

TEST_CASE("saved tensors: activations are recomputed from one saved value") {
  const builder f = forward_of_block();
  const saved_pair p = select_saved_tensors(f, canonical(grad(f)));
  const graph g = p.forward;
  REQUIRE(g.outs == 2);
  CHECK(says(g, 1) == "x @ A' + x @ C'");
  const std::string b = says(p.backward, graph(p.backward).find_output("B"));
  CHECK(b == "dy' @ (silu(0.saved) * tanh(0.saved))");
}

TEST_CASE("saved tensors: the elementwise product of two saved values as well, if a GEMM of forward reads it") {
  builder g;
  const scope p{&g};
  auto n = p.size("n"), m = p.size("m");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  const ex gate = x * t(p.param("G", m, n)), up = x * t(p.param("U", m, n));
  g.add_output((mul(silu(gate), up) * t(p.param("D", n, m))).i, "y");
  const builder f = canonical(g);
  const saved_pair pair = select_saved_tensors(f, canonical(grad(f)));
  REQUIRE(graph(pair.forward).outs == 4);
  CHECK(says(pair.forward, 1) == "x @ G'");
  CHECK(says(pair.forward, 2) == "x @ U'");
  CHECK(says(pair.forward, 3) == "silu(x @ G') * (x @ U')");
  CHECK(says(pair.backward, graph(pair.backward).find_output("D")) == "dy' @ 2.saved");
}

TEST_CASE("saved tensors: a norm that a GEMM of forward reads, and none if no gradient reads it") {
  for (const bool trained : {true, false}) {
    builder g;
    const scope p{&g};
    auto n = p.size("n");
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n), eps = p.scalar("eps");
    const ex weight = trained ? p.param("A", n, n) : p.frozen("A", n, n);
    g.add_output((ex{&g, make_node::normalize(g, x.i, eps.i, true)} * t(weight)).i, "y");
    const builder f = canonical(g);
    const saved_pair pair = select_saved_tensors(f, canonical(grad(f)));
    CHECK(graph(pair.forward).outs == (trained ? 2 : 1));
    if (trained) CHECK(says(pair.backward, graph(pair.backward).find_output("A")) == "dy' @ 0.saved");
  }
}

TEST_CASE("saved tensors: the sum with a residual, and not the summand that nothing else reads") {
  builder g;
  const scope p{&g};
  auto n = p.size("n");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n), h = x + x * t(p.param("A", n, n));
  g.add_output((silu(h) * t(p.param("B", n, n))).i, "y");
  const builder f = canonical(g);
  const saved_pair pair = select_saved_tensors(f, canonical(grad(f)));
  REQUIRE(graph(pair.forward).outs == 2);
  CHECK(says(pair.forward, 1) == "x + x @ A'");
  CHECK(says(pair.backward, graph(pair.backward).find_output("B")) == "dy' @ silu(0.saved)");
}

struct tuned : adapted<llama, target_modules<"o_proj", lora<8>>> {};
TEST_CASE("saved tensors: reports the saved output of attention, and -1 without attention") {
  const block_value v = value_of<tuned>();
  const builder forward = capture_forward(v.formula, v.options);
  const saved_pair pair = select_saved_tensors(forward, capture_backward(v.formula, v.options));
  REQUIRE(pair.attention_out >= 0);
  const graph f = pair.forward;
  CHECK(f[f.out[forward.out.size() + pair.attention_out].at].what == op::attention);
  CHECK(pair_of<lora<>>().attention_out == -1);
}

TEST_CASE("saved tensors: a graph of the requested outputs only") {
  const graph& all = derived<linear_kind, lora<>, false>::backward;
  sequence<bool> asked(all.outs, false);
  asked[all.find_output("lora_B.weight")] = true;
  const builder part = requested_outputs(all, asked);
  const graph g = part;
  REQUIRE(g.outs == 1);
  CHECK(says(g, 0) == "(dy' @ (x @ lora_A.weight')) * scaling");
  CHECK(g.find("weight") == none_id);  // the base weight is only in dx
  CHECK(g.find("x") >= 0);
}
