// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens as launches of their own form, and what a product keeps for them.
#include <doctest/doctest.h>
#include <graft/graft.h>

#include "../support/gpu_target.h"

using namespace graft;

namespace {

constexpr target gpu_that_sums() {
  target t = test::either_way_gpu;
  t.sums_tokens = true;
  return t;
}
constexpr target gpu = gpu_that_sums();

int launch_of_output(const builder& b, const plan& p, const char* name) { return p.launch_of[b.result(name)]; }

}  // namespace

TEST_CASE("token_sum: LoRA's backward is one product that keeps T, and three launches more") {
  const builder b = capture_backward(layer_of<linear_kind, lora<16>, false>());
  const plan p = fuse(b, gpu);
  REQUIRE(p.launches.size() == 4);
  REQUIRE(p.sums.size() == 2);
  const int dx = launch_of_output(b, p, "dx"), da = launch_of_output(b, p, "lora_A.weight");
  REQUIRE(p.launches[dx].product >= 0);
  const product_slots& s = p.products[p.launches[dx].product];
  CHECK(!s.weight_by_row);
  REQUIRE(s.sides.size() == 1);
  CHECK(s.sides[0].kept);
  REQUIRE(p.launches[da].sum >= 0);
  CHECK(p.sums[p.launches[da].sum].left == s.sides[0].s);
  CHECK(dx < da);
  const int db = launch_of_output(b, p, "lora_B.weight");
  REQUIRE(p.launches[db].sum >= 0);
  CHECK(p.sums[p.launches[db].sum].factor >= 0);  // the scaling
}
TEST_CASE("token_sum: a sum waits for the later product that keeps what it reads") {
  const builder b = capture_backward(layer_of<linear_kind, dora<16>, false>());
  const plan p = fuse(b, gpu);
  const int db = launch_of_output(b, p, "lora_B.weight");
  REQUIRE(p.launches[db].sum >= 0);
  const id s = p.sums[p.launches[db].sum].right;
  CHECK(p.launch_of[s] < db);
  CHECK(p.launches[p.launch_of[s]].product >= 0);
  CHECK(p.place[s] == slot::side);
}
TEST_CASE("token_sum: the gradient of a factor per column is one sum") {
  const builder b = capture_backward(layer_of<linear_kind, ia3_feedforward, false>());
  const plan p = fuse(b, gpu);
  const int d = launch_of_output(b, p, "ia3_l");
  REQUIRE(p.launches[d].sum >= 0);
  CHECK(p.sums[p.launches[d].sum].by_column);
}
TEST_CASE("token_sum: a target that has no kernel for it gets single launches") {
  const builder b = capture_backward(layer_of<linear_kind, lora<16>, false>());
  CHECK(fuse(b, test::either_way_gpu).sums.empty());
  CHECK(fuse(b, cpu_target).sums.empty());
}
