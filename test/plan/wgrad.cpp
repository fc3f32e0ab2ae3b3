// SPDX-License-Identifier: Apache-2.0
// Wgrads, the sums over tokens, as launches of their own kind, and what a GEMM stores for them.
#include <doctest/doctest.h>
#include <graft/graft.h>

#include "../support/gpu_target.h"

using namespace graft;

namespace {

constexpr target gpu_that_sums() {
  target t = test::gpu_target_nn;
  t.can<wgrad_launch>().has_kernel = true;
  return t;
}
constexpr target gpu_target = gpu_that_sums();

int launch_of_output(const builder& b, const launch_plan& p, const char* name) { return p.launch_of[b.result(name)]; }

}  // namespace

TEST_CASE("wgrad: LoRA's backward is a dgrad that stores T = dy B, and three further launches") {
  const builder b = capture_backward(layer_of<linear_kind, lora<16>, false>());
  const launch_plan p = fuse(b, gpu_target);
  REQUIRE(p.launches.size() == 4);
  REQUIRE(p.all<wgrad_launch>().size() == 2);
  const int dx = launch_of_output(b, p, "dx"), da = launch_of_output(b, p, "lora_A.weight");
  REQUIRE(p.launches[dx].is<gemm_launch>());
  const gemm_slots& s = p.products[p.as<gemm_launch>(p.launches[dx])->product];
  CHECK(!s.weight_is_nt);
  REQUIRE(s.branches.size() == 1);
  CHECK(s.branches[0].stores_shrink);
  REQUIRE(p.launches[da].is<wgrad_launch>());
  CHECK(p.as<wgrad_launch>(p.launches[da])->left == s.branches[0].s);
  CHECK(dx < da);
  const int db = launch_of_output(b, p, "lora_B.weight");
  REQUIRE(p.launches[db].is<wgrad_launch>());
  CHECK(p.as<wgrad_launch>(p.launches[db])->factor >= 0);  // the scaling
}
TEST_CASE("wgrad: a wgrad runs after the GEMM that stores its operand") {
  const builder b = capture_backward(layer_of<linear_kind, dora<16>, false>());
  const launch_plan p = fuse(b, gpu_target);
  const int db = launch_of_output(b, p, "lora_B.weight");
  REQUIRE(p.launches[db].is<wgrad_launch>());
  const id s = p.as<wgrad_launch>(p.launches[db])->right;
  CHECK(p.launch_of[s] < db);
  CHECK(p.launches[p.launch_of[s]].is<gemm_launch>());
  CHECK(p.slot_of[s] == launch_slot::branch);
}
TEST_CASE("wgrad: the gradient of a factor per column is one wgrad") {
  const builder b = capture_backward(layer_of<linear_kind, ia3_feedforward, false>());
  const launch_plan p = fuse(b, gpu_target);
  const int d = launch_of_output(b, p, "ia3_l");
  REQUIRE(p.launches[d].is<wgrad_launch>());
  CHECK(p.as<wgrad_launch>(p.launches[d])->by_column);
}
TEST_CASE("wgrad: a target without wgrad kernels gets single launches") {
  const builder b = capture_backward(layer_of<linear_kind, lora<16>, false>());
  CHECK(fuse(b, test::gpu_target_nn).all<wgrad_launch>().empty());
  CHECK(fuse(b, cpu_target).all<wgrad_launch>().empty());
}
