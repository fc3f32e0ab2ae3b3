// SPDX-License-Identifier: Apache-2.0
// On a GPU, dropout on the input of a low-rank branch is part of the branch's narrow GEMMs, forward and backward.
#include <doctest/doctest.h>
#include <graft/adapter/hira.h>
#include <graft/adapter/lora.h>
#include <graft/derive/block.h>
#include <graft/derive/saved_tensors.h>

#include "../support/gpu_target.h"
#include "../support/launches.h"
#include "../support/static_check.h"

using namespace graft;
using namespace test;

namespace {

constexpr ex one_layer(block_scope m, ex x) { return m.linear("q_proj", x, m.size("hidden")); }

constexpr ex two_layers(block_scope m, ex x) {
  return mul(m.linear("q_proj", x, m.size("hidden")), m.linear("k_proj", x, m.size("hidden")));
}

saved_pair trained(const formula& of, dropout_kinds drops, ex (*run)(block_scope, ex) = &one_layer) {
  const adapter_rule rules[] = {{"*", of, "", false, drops}};
  block_options options;
  options.adapters = {rules, 1}, options.dropped = true;
  const block_formula f{"one", run};
  return select_saved_tensors(capture_forward(f, options), capture_backward(f, options));
}

}  // namespace

TEST_CASE("dropout branch: the GEMMs of a low-rank branch include dropout") {
  target to = gpu_target;
  to.can<dropout_gemm>().has_kernel = true;
  const saved_pair lora_pair = trained(formula_of<lora<16>>(), {.elements = true});
  SAYS_NOW(launches(lora_pair.forward, to), "GEMM, prologue dropout | GEMM, low-rank branch, epilogue add");
  const launch_plan back = fuse(lora_pair.backward, to);
  CHECK(back.all<dropout_gemm>().size() == 2);
  int expands = 0, sums = 0;
  for (const dropout_gemm& d : back.all<dropout_gemm>()) {
    expands += d.form_kind == dropout_gemm::form::expand ? 1 : 0,
        sums += d.form_kind == dropout_gemm::form::sum ? 1 : 0;
    CHECK(lora_pair.backward.n[d.dropout].what == op::dropout);
  }
  CHECK(expands == 1);
  CHECK(sums == 1);
  for (id i = 0; i < lora_pair.backward.n.size(); ++i)
    if (lora_pair.backward.n[i].what == op::dropout && back.live[i]) CHECK(back.slot_of[i] != launch_slot::standalone);
  // Without such kernels, and in a GEMM with a matrix as wide as the weight, dropout is a launch.
  CHECK(fuse(lora_pair.forward, gpu_target).all<dropout_gemm>().size() == 0);
  CHECK(fuse(trained(formula_of<hira<16>>(), {.elements = true}).forward, to).all<dropout_gemm>().size() == 0);
}
TEST_CASE("dropout branch: the layer's GEMM reads U, and its dgrad makes T = dy B with dB fused") {
  target to = gpu_target_nn;
  to.can<dropout_gemm>().has_kernel = to.can<wgrad_launch>().has_kernel = to.can<wgrad_launch>().fuses_into_dgrad =
      true;
  const formula low_rank = formula_of<lora<16>>();
  const saved_pair one = trained(low_rank, {.elements = true}),
                   both = trained(low_rank, {.elements = true}, &two_layers);
  const launch_plan forth = fuse(one.forward, to);
  REQUIRE(forth.products.size() == 1);
  REQUIRE(forth.products[0].branches.size() == 1);
  const low_rank_branch& given = forth.products[0].branches[0];
  CHECK_FALSE(given.computes_shrink);
  CHECK(given.expands);
  CHECK(given.a == none_id);
  CHECK(given.s == forth.all<dropout_gemm>()[0].result);
  CHECK(forth.launch_of[given.s] < forth.launch_of[forth.products[0].result]);
  // Two layers with one input: dx is a sum of two such GEMMs, and a launch for each adds its dropout term.
  for (const saved_pair* pair : {&one, &both}) {
    const graph g = pair->backward;
    const launch_plan p = fuse(g, to);
    const int layers = pair == &one ? 1 : 2,
              factors = pair == &one ? 0 : 2;  // dy of a layer is dy times the other layer's output
    REQUIRE(p.products.size() == layers);
    CHECK(p.launches.size() == 3 * layers + factors);
    for (const launch& l : p.launches) {
      const gemm_launch* const gemm = p.as<gemm_launch>(l);
      if (gemm == nullptr) continue;
      const gemm_slots& s = p.products[gemm->product];
      REQUIRE(s.branches.size() == 1);
      CHECK(s.branches[0].computes_shrink);
      CHECK(s.branches[0].stores_shrink);
      CHECK_FALSE(s.branches[0].expands);
      CHECK(s.branches[0].b == none_id);
      REQUIRE(gemm->fused_wgrads[0] >= 0);
      CHECK(gemm->fused_wgrads[1] < 0);
      CHECK(p.all<wgrad_launch>()[gemm->fused_wgrads[0]].left == s.x);
      for (const dropout_gemm& d : p.all<dropout_gemm>())
        if (d.narrow == s.branches[0].s) CHECK(p.launch_of[d.result] > p.launch_of[s.result]);
    }
  }
}
