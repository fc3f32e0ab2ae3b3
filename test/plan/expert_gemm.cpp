// SPDX-License-Identifier: Apache-2.0
// A linear layer of experts and its low-rank branch are one launch, forward and for dx, and nothing else is.
#include <doctest/doctest.h>
#include <graft/block/mixtral.h>
#include <graft/derive/saved_tensors.h>
#include <graft/graft.h>
#include <graft/targets.h>

using namespace graft;

namespace {

template <class Adapter> saved_pair pair_of() {
  const adapter_rule rules[] = {{"mlp.experts.*", formula_of<Adapter>()}};
  block_options o;
  o.adapters = {rules, 1}, o.activation = op::silu;
  return select_saved_tensors(capture_forward(block_of<mixtral>(), o), capture_backward(block_of<mixtral>(), o));
}
int launches_of_products(const launch_plan& p, const graph& g) {
  int n = 0;
  for (const launch& l : p.launches)
    n += l.is<expert_gemm>() || (l.is<nodes_launch>() && g[p.anchor_of(l)].what == op::grouped_matmul) ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("expert gemm: base and branch of each expert are one launch, and dx too") {
  const saved_pair pair = pair_of<lora<8>>();
  const graph forward = pair.forward, backward = pair.backward;
  const launch_plan p = fuse(forward, sm_90);
  REQUIRE(p.all<expert_gemm>().size() == 2);     // gate and up, and down
  CHECK(launches_of_products(p, forward) == 4);  // each of them after x Aᵀ
  const expert_gemm& e = p.all<expert_gemm>()[0];
  CHECK(forward[e.base].c == forward[e.branch].c);
  CHECK(forward[unshaped(forward, forward[e.branch].a)].what == op::grouped_matmul);
  CHECK(same_text(forward.name(forward[e.base].b).c_str(), "mlp.experts.gate_up_proj"));
  CHECK(p.launch_of[e.base] == p.launch_of[e.result]);
  CHECK(fuse(backward, sm_90).all<expert_gemm>().size() == 2);
  target without = sm_90;
  without.can<expert_gemm>().adds_branch = false;
  CHECK(fuse(forward, without).all<expert_gemm>().empty());
  CHECK(launches_of_products(fuse(forward, without), forward) == 6);
}
TEST_CASE("expert gemm: factors of the experts are not a branch") {
  CHECK(fuse(pair_of<ia3>().forward, sm_90).all<expert_gemm>().empty());
}
