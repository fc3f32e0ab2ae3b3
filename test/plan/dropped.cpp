// SPDX-License-Identifier: Apache-2.0
// Dropout of what a side branch sees is part of its narrow products on a GPU, forward and backward, and of no others.
#include <doctest/doctest.h>
#include <graft/adapter/hira.h>
#include <graft/adapter/lora.h>
#include <graft/derive/block.h>
#include <graft/derive/keep.h>

#include "../support/both.h"
#include "../support/gpu_target.h"
#include "../support/launches.h"

using namespace graft;
using namespace test;

namespace {

constexpr ex one_layer(block_scope m, ex x) { return m.linear("q_proj", x, m.size("hidden")); }

constexpr ex two_layers(block_scope m, ex x) {
  return mul(m.linear("q_proj", x, m.size("hidden")), m.linear("k_proj", x, m.size("hidden")));
}

kept_pair trained(const formula& of, left_out drops, ex (*run)(block_scope, ex) = &one_layer) {
  const adaption rules[] = {{"*", of, "", false, drops}};
  block_options how;
  how.adapters = {rules, 1}, how.dropped = true;
  const block_formula f{"one", run};
  return keep(capture_forward(f, how), capture_backward(f, how));
}

}  // namespace

TEST_CASE("dropped: the products of a low-rank branch take dropout in") {
  target to = gpu;
  to.takes_dropout = true;
  const kept_pair lora_pair = trained(formula_of<lora<16>>(), {.elements = true});
  SAYS_NOW(launches(lora_pair.forward, to),
           "product: pre=dropout product=matmul | product: product=matmul side=matmul post=add");
  const plan back = fuse(lora_pair.backward, to);
  CHECK(back.dropped.size() == 2);
  int expands = 0, sums = 0;
  for (const dropped_product& d : back.dropped) {
    expands += d.how == dropped_product::form::expand ? 1 : 0, sums += d.how == dropped_product::form::sum ? 1 : 0;
    CHECK(lora_pair.backward.n[d.terms[0].dropout].what == op::dropout);
  }
  CHECK(expands == 1);
  CHECK(sums == 1);
  for (id i = 0; i < lora_pair.backward.n.size(); ++i)
    if (lora_pair.backward.n[i].what == op::dropout && back.live[i]) CHECK(back.place[i] != slot::alone);
  // A target without such kernels, and a product with a matrix as wide as the weight, have it as a launch of its own.
  CHECK(fuse(lora_pair.forward, gpu).dropped.size() == 0);
  CHECK(fuse(trained(formula_of<hira<16>>(), {.elements = true}).forward, to).dropped.size() == 0);
}
TEST_CASE("dropped: S is given to the product of the layer, and T is made by its data gradient, with dB beside it") {
  target to = either_way_gpu;
  to.takes_dropout = to.sums_tokens = to.sums_beside = true;
  const formula low_rank = formula_of<lora<16>>();
  const kept_pair one = trained(low_rank, {.elements = true}),
                  both = trained(low_rank, {.elements = true}, &two_layers);
  const plan forth = fuse(one.forward, to);
  REQUIRE(forth.products.size() == 1);
  REQUIRE(forth.products[0].sides.size() == 1);
  const side_branch& given = forth.products[0].sides[0];
  CHECK_FALSE(given.made);
  CHECK(given.added);
  CHECK(given.a == none_id);
  CHECK(given.s == forth.dropped[0].result);
  CHECK(forth.launch_of[given.s] < forth.launch_of[forth.products[0].result]);
  // Of two layers with one input dx is a sum of two such products, and what was dropped of both is added behind them by one
  // launch.
  for (const kept_pair* pair : {&one, &both}) {
    const graph g = pair->backward;
    const plan p = fuse(g, to);
    const int layers = pair == &one ? 1 : 2, factors = pair == &one ? 0 : 2;  // dy of a layer is dy times the other
    REQUIRE(p.products.size() == layers);
    CHECK(p.launches.size() == 2 * layers + 1 + factors);
    for (const dropped_product& d : p.dropped)
      CHECK(d.terms.size() == (d.how == dropped_product::form::expand ? layers : 1));
    for (const launch& l : p.launches) {
      if (l.product < 0) continue;
      const product_slots& s = p.products[l.product];
      REQUIRE(s.sides.size() == 1);
      CHECK(s.sides[0].made);
      CHECK(s.sides[0].kept);
      CHECK_FALSE(s.sides[0].added);
      CHECK(s.sides[0].b == none_id);
      REQUIRE(l.beside[0] >= 0);
      CHECK(l.beside[1] < 0);
      CHECK(p.sums[l.beside[0]].left == s.x);
      for (const dropped_product& d : p.dropped)
        for (const dropped_term& t : d.terms)
          if (t.narrow == s.sides[0].s) CHECK(p.launch_of[d.result] > p.launch_of[s.result]);
    }
  }
}
