// SPDX-License-Identifier: Apache-2.0
// Training with the adapter folded into a copy of the weight: the backward graph has the gradients of its parameters.
// run/training.cpp compares the numbers of both forms for every adapter.
#include <doctest/doctest.h>
#include <graft/graft.h>

using namespace graft;

namespace {

template <class Adapter> builder backward() { return capture_backward_folded(layer_of<linear_kind, Adapter, false>()); }
template <class Adapter> builder forward() { return capture_forward_folded(layer_of<linear_kind, Adapter, false>()); }
int products_of_data(const graph& g) {
  const stages when = schedule(g);
  int n = 0;
  for (id i = 0; i < g.size; ++i) n += g[i].what == op::matmul && when.of[i] == stage::call ? 1 : 0;
  return n;
}
id weight_of(const builder& g) { return g.n[g.result("y")].b; }

static_assert(low_rank_update_at(capture_forward_folded(layer_of<linear_kind, lora<4>, false>()), 0).found == false);

}  // namespace

TEST_CASE("folded: the update is one product, whatever its formula") {
  for (const builder& g : {forward<lora<>>(), forward<vera<>>(), forward<loha<>>()}) {
    CHECK(products_of_data(g) == 1);
    const low_rank_update w = low_rank_update_at(g, weight_of(g));
    REQUIRE(w.found);
    CHECK(g.n[w.base].what == op::base);
  }
  const builder scaled = forward<randlora<>>();  // the scalar is multiplied into the factor that is computed anyway
  CHECK(unshaped(scaled, low_rank_update_at(scaled, weight_of(scaled)).left) == scaled.find("randlora_B"));
  const low_rank_update by_element = low_rank_update_at(forward<hira<>>(), weight_of(forward<hira<>>()));
  CHECK(by_element.found);
  CHECK_FALSE(by_element.adds);
  CHECK_FALSE(low_rank_update_at(forward<ia3>(), weight_of(forward<ia3>())).found);
  CHECK_FALSE(low_rank_update_at(forward<dora<>>(), weight_of(forward<dora<>>())).found);
  CHECK_FALSE(low_rank_update_at(forward<none>(), weight_of(forward<none>())).found);
}
TEST_CASE("folded: VeRA's two gradients read one sum over the tokens") {
  CHECK(products_of_data(backward<vera<>>()) == 3);  // dx, x Aᵀ, and dyᵀ (x Aᵀ)
  CHECK(products_of_data(capture_backward(layer_of<linear_kind, vera<>, false>())) == 6);
  CHECK(products_of_data(backward<lora<>>()) == 5);
}
TEST_CASE(
    "in_weight: RandLoRA's gradients are products with rows and sums over them, and store nothing else as large") {
  const builder g = backward<randlora<>>();
  const stages when = schedule(g);
  CHECK(products_of_data(g) == 3);  // dx, dy B, and the sum of dy B over the tokens
  const node_set live = reachable(g);
  for (id i = 0; i < g.n.size(); ++i) {
    if (!live[i] || g.n[i].what != op::matmul || when.of[i] != stage::call) continue;
    CHECK(when.has_token_rows[g.n[i].a]);
  }
  for (id i = 0; i < g.n.size(); ++i)  // λ ⊙ A ⊙ γ is computed inside its reader
    for (int k = 0; live[i] && when.of[i] == stage::call && k < 2; ++k)
      if (const id o = g.n[i].operand(k); g.n[i].what == op::mul && o >= 0 && when.of[o] == stage::parameter)
        CHECK(is_leaf(g.n[unshaped(g, o)].what));
}
