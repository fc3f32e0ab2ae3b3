// SPDX-License-Identifier: Apache-2.0
// Fused wgrads: sums over tokens in the launch of a dgrad, and what a forward launch stores for backward.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/derive/saved_tensors.h>
#include <graft/graft.h>

#include "../support/gpu_target.h"

using namespace graft;

namespace {

constexpr target gpu_with(bool fused_wgrads) {
  target t = test::gpu_target_nn;
  t.can<wgrad_launch>() = {.has_kernel = true, .fuses_into_dgrad = fused_wgrads};
  return t;
}
template <class Adapter> saved_pair pair_of() {
  using d = derived<linear_kind, Adapter, false>;
  return select_saved_tensors(d::forward, d::backward);
}

// Plans can be made while compiling as well.
template <class Adapter>
constexpr int launches = fuse(derived<linear_kind, Adapter, false>::backward, gpu_with(true)).launches.size();
static_assert(launches<lora<16>> == 2);

}  // namespace

TEST_CASE("fused wgrad: in training both passes of LoRA are one launch each") {
  const saved_pair pair = pair_of<lora<16>>();
  const launch_plan forth = fuse(pair.forward, gpu_with(true)), back = fuse(pair.backward, gpu_with(true));
  REQUIRE(forth.launches.size() == 1);
  REQUIRE(forth.products.size() == 1);
  CHECK(forth.products[0].branches[0].stores_shrink);
  CHECK(graph(pair.forward).out[1].at == forth.products[0].branches[0].s);
  REQUIRE(back.launches.size() == 1);
  REQUIRE(back.all<wgrad_launch>().size() == 2);
  CHECK(back.all<gemm_launch>()[0].fused_wgrads[0] >= 0);
  CHECK(back.all<gemm_launch>()[0].fused_wgrads[1] >= 0);
  for (const id i : {pair.backward.result("lora_A.weight"), pair.backward.result("lora_B.weight")})
    CHECK(back.launch_of[i] == 0);
}
TEST_CASE("fused wgrad: without saved tensors U = x Aᵀ is computed by a launch before") {
  const builder b = capture_backward(layer_of<linear_kind, lora<16>, false>());
  const launch_plan p = fuse(b, gpu_with(true));
  REQUIRE(p.launches.size() == 2);
  CHECK(p.launch_of[b.result("dx")] == 1);
  CHECK(p.launch_of[b.result("lora_A.weight")] == 1);
  CHECK(p.launch_of[b.result("lora_B.weight")] == 1);
}
struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>> {};
TEST_CASE("fused wgrad: in a block every dgrad includes the wgrads of its own factors") {
  const block_value v = value_of<tuned>();
  const saved_pair pair =
      select_saved_tensors(capture_forward(v.formula, v.options), capture_backward(v.formula, v.options));
  const graph g = pair.backward;
  const launch_plan p = fuse(g, gpu_with(true));
  REQUIRE(p.all<wgrad_launch>().size() == 14);
  for (const launch& l : p.launches) {
    CHECK(!l.is<wgrad_launch>());
    const gemm_launch* const gemm = p.as<gemm_launch>(l);
    if (gemm == nullptr) continue;
    const gemm_slots& s = p.products[gemm->product];
    for (const int k : gemm->fused_wgrads) {
      REQUIRE(k >= 0);
      const wgrad_launch& sum = p.all<wgrad_launch>()[k];
      CHECK((sum.left == s.x || sum.left == s.branches[0].s));
    }
  }
}
TEST_CASE("fused wgrad: a target without fused wgrads runs them after the dgrad") {
  const saved_pair pair = pair_of<lora<16>>();
  const launch_plan p = fuse(pair.backward, gpu_with(false));
  CHECK(p.launches.size() == 3);
  for (const gemm_launch& l : p.all<gemm_launch>()) CHECK(l.fused_wgrads[0] < 0);
}
TEST_CASE("fused wgrad: the accumulators before a factor per column are stored by the same launch") {
  const saved_pair ia3_pair = pair_of<ia3>(), dora_pair = pair_of<dora<16>>();
  const launch_plan p = fuse(ia3_pair.forward, gpu_with(true)), d = fuse(dora_pair.forward, gpu_with(true));
  REQUIRE(p.launches.size() == 1);
  CHECK(p.products[0].pre_epilogue == graph(ia3_pair.forward).out[1].at);
  REQUIRE(d.launches.size() == 1);
  CHECK(d.products[0].pre_epilogue >= 0);
  CHECK(d.products[0].branches[0].stores_shrink);
}
TEST_CASE("fused wgrad: accumulators before a factor that a later launch reads are stored as well") {
  const builder b = capture_backward(layer_of<linear_kind, ia3_feedforward, false>());
  const launch_plan p = fuse(b, gpu_with(true));
  REQUIRE(p.launches.size() == 2);  // dx with its accumulators; the gradient of the factor
  CHECK(p.products[0].pre_epilogue >= 0);
  CHECK(p.products[0].result == b.result("dx"));
}
TEST_CASE("fused wgrad: the gradient of a factor of dy is fused into the dgrad that applies it") {
  const saved_pair pair = pair_of<ia3>(), dora_pair = pair_of<dora<16>>();
  const launch_plan p = fuse(pair.backward, gpu_with(true)), d = fuse(dora_pair.backward, gpu_with(true));
  REQUIRE(p.launches.size() == 1);
  REQUIRE(p.all<gemm_launch>()[0].fused_wgrads[0] >= 0);
  CHECK(p.all<wgrad_launch>()[p.all<gemm_launch>()[0].fused_wgrads[0]].by_column);
  CHECK(fuse(pair.backward, gpu_with(false)).launches.size() == 2);
  for (const gemm_launch& l :
       d.all<gemm_launch>())  // in DoRA the launch of that sum also scales dy, which the GEMM reads
    for (const int k : l.fused_wgrads) CHECK((k < 0 || !d.all<wgrad_launch>()[k].by_column));
}
