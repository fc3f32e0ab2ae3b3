// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens in the launch of a data gradient, and what a forward launch stores for a backward pass.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/derive/keep.h>
#include <graft/graft.h>

#include "../support/gpu_target.h"

using namespace graft;

namespace {

constexpr target gpu_with(bool beside) {
  target t = test::either_way_gpu;
  t.sums_tokens = true, t.sums_beside = beside;
  return t;
}
template <class Adapter> kept_pair pair_of() {
  using d = derived<linear_kind, Adapter, false>;
  return keep(d::forward, d::backward);
}

// Plans are made while compiling, too.
template <class Adapter>
constexpr int launches = fuse(derived<linear_kind, Adapter, false>::backward, gpu_with(true)).launches.size();
static_assert(launches<lora<16>> == 2);

}  // namespace

TEST_CASE("beside: in training both passes of LoRA are one launch each") {
  const kept_pair pair = pair_of<lora<16>>();
  const plan forth = fuse(pair.forward, gpu_with(true)), back = fuse(pair.backward, gpu_with(true));
  REQUIRE(forth.launches.size() == 1);
  REQUIRE(forth.products.size() == 1);
  CHECK(forth.products[0].sides[0].kept);
  CHECK(graph(pair.forward).out[1].at == forth.products[0].sides[0].s);
  REQUIRE(back.launches.size() == 1);
  REQUIRE(back.sums.size() == 2);
  CHECK(back.launches[0].beside[0] >= 0);
  CHECK(back.launches[0].beside[1] >= 0);
  for (const id i : {pair.backward.result("lora_A.weight"), pair.backward.result("lora_B.weight")})
    CHECK(back.launch_of[i] == 0);
}
TEST_CASE("beside: x times A of a pass that keeps nothing comes before") {
  const builder b = capture_backward(layer_of<linear_kind, lora<16>, false>());
  const plan p = fuse(b, gpu_with(true));
  REQUIRE(p.launches.size() == 2);
  CHECK(p.launch_of[b.result("dx")] == 1);
  CHECK(p.launch_of[b.result("lora_A.weight")] == 1);
  CHECK(p.launch_of[b.result("lora_B.weight")] == 1);
}
struct tuned : adapted<llama, on<"*_proj", lora<16>>> {};
TEST_CASE("beside: in a block every data gradient takes the gradients of its own factors") {
  const block_value v = value_of<tuned>();
  const kept_pair pair = keep(capture_forward(v.formula, v.how), capture_backward(v.formula, v.how));
  const graph g = pair.backward;
  const plan p = fuse(g, gpu_with(true));
  REQUIRE(p.sums.size() == 14);
  for (const launch& l : p.launches) {
    CHECK(l.sum < 0);
    if (l.product < 0) continue;
    const product_slots& s = p.products[l.product];
    for (const int k : l.beside) {
      REQUIRE(k >= 0);
      const token_sum& sum = p.sums[k];
      CHECK((sum.left == s.x || sum.left == s.sides[0].s));
    }
  }
}
TEST_CASE("beside: a target without such a launch gets the sums behind it") {
  const kept_pair pair = pair_of<lora<16>>();
  const plan p = fuse(pair.backward, gpu_with(false));
  CHECK(p.launches.size() == 3);
  for (const launch& l : p.launches) CHECK(l.beside[0] < 0);
}
TEST_CASE("beside: the sum before a factor per column is stored by the same launch") {
  const kept_pair ia3_pair = pair_of<ia3>(), dora_pair = pair_of<dora<16>>();
  const plan p = fuse(ia3_pair.forward, gpu_with(true)), d = fuse(dora_pair.forward, gpu_with(true));
  REQUIRE(p.launches.size() == 1);
  CHECK(p.products[0].before_posts == graph(ia3_pair.forward).out[1].at);
  REQUIRE(d.launches.size() == 1);
  CHECK(d.products[0].before_posts >= 0);
  CHECK(d.products[0].sides[0].kept);
}
TEST_CASE("beside: a sum before a factor that a later launch reads is stored, too") {
  const builder b = capture_backward(layer_of<linear_kind, ia3_feedforward, false>());
  const plan p = fuse(b, gpu_with(true));
  REQUIRE(p.launches.size() == 2);  // dx and what is before its factor; the gradient of the factor
  CHECK(p.products[0].before_posts >= 0);
  CHECK(p.products[0].result == b.result("dx"));
}
TEST_CASE("beside: the gradient of a factor of the input runs beside the data gradient that has it") {
  const kept_pair pair = pair_of<ia3>(), dora_pair = pair_of<dora<16>>();
  const plan p = fuse(pair.backward, gpu_with(true)), d = fuse(dora_pair.backward, gpu_with(true));
  REQUIRE(p.launches.size() == 1);
  REQUIRE(p.launches[0].beside[0] >= 0);
  CHECK(p.sums[p.launches[0].beside[0]].by_column);
  CHECK(fuse(pair.backward, gpu_with(false)).launches.size() == 2);
  for (const launch& l : d.launches)  // there the pass that sums also scales dy, which the product reads
    for (const int k : l.beside) CHECK((k < 0 || !d.sums[k].by_column));
}
