// SPDX-License-Identifier: Apache-2.0
// Grouped GEMMs: GEMMs that read the same input are one launch, run as one kernel for few tokens or one per GEMM for
// many.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/plan/launch/gemm.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>> {
  using element = bf16;
};
struct uneven : adapted<llama, target_modules<"q_proj", lora<16>>> {
  using element = bf16;
};

struct all_rotated : adapted<llama, target_modules<"*_proj", oft<32>>> {
  using element = bf16;
};
struct gate_rotated : adapted<llama, target_modules<"gate_proj", oft<32>>, target_modules<"down_proj", boft<8, 2>>> {
  using element = bf16;
};

template <class Block> int kernels_with(long long tokens) {
  block_value v = value_of<Block>();
  v.options.cached = true;
  const builder b = capture_forward(v.formula, v.options);
  const graph g = b;
  size_values s = with_nominals(g, size_values{});
  g.sizes.set_tokens(s, tokens);
  return kernel_count(g, fuse(g, sm_90), s, dtype::bf16);
}

}  // namespace

TEST_CASE("grouped: Q, K and V, and gate and up, each with its adapter and its activation") {
  const block_value v = value_of<tuned>();
  const launch_plan p = fuse(capture_forward(v.formula, v.options), sm_90);
  int of_three = 0, of_two = 0, alone = 0;
  for (const gemm_launch& l : p.all<gemm_launch>()) {
    of_three += l.grouped == 2 ? 1 : 0, of_two += l.grouped == 1 ? 1 : 0, alone += l.grouped == 0 ? 1 : 0;
    for (int k = 0; k <= l.grouped; ++k) {
      CHECK(p.products[l.product + k].x == p.products[l.product].x);
      CHECK(p.launch_of[p.products[l.product + k].result] == p.launch_of[l.around]);
    }
  }
  CHECK((of_three == 1 && of_two == 1 && alone == 2));
}
TEST_CASE("grouped: few tokens need one kernel per group, many tokens one per GEMM") {
  CHECK(kernels_with<tuned>(16) == 7);
  CHECK(kernels_with<tuned>(512) == 7 + 3 + 3);  // also RoPE and head layout, KV cache, silu(gate) ⊙ up
  CHECK(kernels_with<uneven>(16) == 7);          // K and V get a branch of zeros
}
TEST_CASE("grouped: silu(gate) ⊙ up is part of their launch if nothing else reads gate and up") {
  const block_value v = value_of<tuned>();
  const builder b = capture_forward(v.formula, v.options);
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  int gates = 0;
  for (const gemm_launch& l : p.all<gemm_launch>()) {
    if (l.gated < 0) continue;
    ++gates;
    REQUIRE(l.grouped == 1);
    CHECK(g[l.gated].what == op::mul);
    CHECK(p.launch_of[l.gated] == p.launch_of[l.around]);
    CHECK(p.slot_of[l.gated] == launch_slot::epilogue);
    CHECK(p.products[l.product].act == op::silu);
  }
  CHECK(gates == 1);
  target unfused = sm_90;
  unfused.can<gemm_launch>().fuses_gates = false;
  CHECK(fuse(g, unfused).launches.size() == p.launches.size() + 1);
}
TEST_CASE("grouped: GEMMs with different rotations of one input are one launch with the rotations in its prologue") {
  const block_value v = value_of<all_rotated>();
  const builder b = capture_forward(v.formula, v.options);
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  int turns = 0, launches = 0;
  for (const launch& l : p.launches) CHECK(g[p.anchor_of(l)].what != op::rotate);
  for (const gemm_launch& l : p.all<gemm_launch>()) {
    ++launches;
    for (int k = 0; k <= l.grouped; ++k) {
      const gemm_slots& s = p.products[l.product + k];
      REQUIRE(s.input_rotation >= 0);
      ++turns;
      CHECK(s.x == p.products[l.product].x);
      CHECK((p.launch_of[s.input_rotation] == p.launch_of[l.around] &&
             p.slot_of[s.input_rotation] == launch_slot::prologue));
    }
  }
  CHECK((turns == 7 && launches == 4));
  CHECK(kernels_with<all_rotated>(16) ==
        kernels_with<tuned>(16) + 4 + 1);  // one rotation kernel per launch; gate ⊙ up, whose factors read two inputs
  CHECK(kernels_with<all_rotated>(65) == kernels_with<tuned>(65) + 4);
  target unfused = sm_90;
  unfused.can<gemm_launch>().fuses_input_rotation = false;
  CHECK(fuse(g, unfused).launches.size() > p.launches.size() + 7);
}
TEST_CASE("grouped: gate rotates its input, up does not; gate ⊙ up is a kernel after them") {
  const block_value v = value_of<gate_rotated>();
  const builder b = capture_forward(v.formula, v.options);
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  int gates = 0;
  for (const gemm_launch& l : p.all<gemm_launch>()) {
    if (l.gated < 0) continue;
    ++gates;
    CHECK(g[l.gated].what == op::mul);
    CHECK((p.products[l.product].input_rotation >= 0) != (p.products[l.product + 1].input_rotation >= 0));
  }
  CHECK(gates == 1);
  CHECK(kernels_with<gate_rotated>(8) == kernels_with<tuned>(8) + 1 + 1 + 1);  // one rotation kernel per launch
  CHECK(kernels_with<gate_rotated>(65) == kernels_with<tuned>(65) + 1 + 1);    // gate ⊙ up is a kernel in both
}
TEST_CASE("grouped: the rotation of a dgrad is part of its launch, and of its kernel if tiles are wide") {
  const graph g = derived<linear_kind, oft<dyn>, false>::backward;
  const launch_plan p = fuse(g, sm_90);
  REQUIRE(p.products.size() == 1);
  const gemm_slots& s = p.products[0];
  CHECK(g[s.result].what == op::rotate);
  CHECK((s.output_rotation == g[s.result].a && s.pre_epilogue < 0));  // the gradient of the blocks reads dx
  CHECK(p.slot_of[s.result] == launch_slot::epilogue);
  auto kernels = [&](long long tokens, long long size, long long block) {
    size_values v = with_nominals(g, size_values{});
    for (const char* name : {"in", "out"}) v.v[g.sizes.e[g.sizes.find(name)].index] = size;
    v.v[g.sizes.e[g.sizes.find("b")].index] = block;
    g.sizes.set_tokens(v, tokens);
    return kernel_count(g, p, p.launches[0], v, dtype::bf16, {});
  };
  CHECK(kernels(4096, 4096, 32) == 1);
  CHECK(kernels(2000, 1184, 8) == 1);
  CHECK(kernels(4096, 4096, 64) == 2);  // blocks of more than 32 columns
  CHECK(kernels(16, 4096, 32) == 2);    // a skinny GEMM
  CHECK(kernels(300, 384, 32) == 2);    // narrow tiles
  const graph butterfly = derived<linear_kind, boft<dyn, dyn>, false>::backward;
  const launch_plan of_factors = fuse(butterfly, sm_90);
  auto with_factors = [&](long long factors) {
    size_values v = with_nominals(butterfly, size_values{});
    for (const char* name : {"in", "out"}) v.v[butterfly.sizes.e[butterfly.sizes.find(name)].index] = 4096;
    v.v[butterfly.sizes.e[butterfly.sizes.find("b")].index] = 8;
    v.v[butterfly.sizes.e[butterfly.sizes.find("m")].index] = factors;
    butterfly.sizes.set_tokens(v, 4096);
    int n = 0;
    for (const launch& l : of_factors.launches)
      if (const gemm_launch* const gemm = of_factors.as<gemm_launch>(l);
          gemm != nullptr && of_factors.products[gemm->product].output_rotation >= 0) {
        CHECK(of_factors.products[gemm->product].pre_epilogue >=
              0);                           // the rotation by several factors reads the accumulators
        CHECK(gemm->fused_wgrads[0] >= 0);  // the gradient of the scale
        n += kernel_count(butterfly, of_factors, l, v, dtype::bf16, {});
      }
    return n;
  };
  CHECK((with_factors(1) == 1 && with_factors(3) == 1 && with_factors(4) == 2));
  target unfused = sm_90;
  unfused.can<gemm_launch>().fuses_output_rotation = false;
  CHECK(fuse(g, unfused).launches.size() == p.launches.size() + 1);
}
TEST_CASE("grouped: a GEMM that saves its shrink result is not grouped") {
  const block_value v = value_of<tuned>();
  const builder forward = capture_forward(v.formula, v.options), backward = capture_backward(v.formula, v.options);
  const saved_pair saved = select_saved_tensors(forward, backward);
  const launch_plan p = fuse(saved.forward, sm_90);
  for (const gemm_launch& l : p.all<gemm_launch>())
    for (int k = 0; l.grouped > 0 && k <= l.grouped; ++k) FAIL("a product that keeps S runs with others");
}
TEST_CASE("grouped: a target without grouping gets a launch per GEMM") {
  const block_value v = value_of<tuned>();
  target single = sm_90;
  single.can<gemm_launch>().max_grouped_gemms = 1;
  const launch_plan p = fuse(capture_forward(v.formula, v.options), single);
  for (const gemm_launch& l : p.all<gemm_launch>()) CHECK(l.grouped == 0);
}
