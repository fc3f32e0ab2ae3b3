// SPDX-License-Identifier: Apache-2.0
// A whole decoder block with DoRA on its seven projections, as one graph: derived and planned like a layer.
#include "../support/block.h"

#include <graft/plan/buffers.h>

#include "../support/dense.h"
#include "../support/gpu_target.h"
#include "../support/launches.h"
#include "../support/static_check.h"

using namespace test;
using dora_block = block<dora<16>>;

// Also captured while compiling; it is the largest graph of these tests.
static_assert(dora_block::forward().n.size() == 202);
static_assert(dora_block::backward().n.size() == 308);

TEST_CASE("block: the forward graph") {
  const builder g = dora_block::forward();
  CHECK(g.n.size() == 202);
  CHECK(g.bad.what == formula_error::none);
  CHECK(first_violated(g, size_values{}) == nullptr);
  for (const char* name : {"self_attn.q_proj.weight", "self_attn.o_proj.lora_magnitude_vector",
                           "mlp.down_proj.lora_A.weight", "post_attention_layernorm.weight", "eps", "x"})
    CHECK(g.find(name) != none_id);
  CHECK(g.sizes().find("mlp.intermediate") >= 0);
  for (const node& v : g.n) CHECK(v.what != op::detach);
}

TEST_CASE("block: the backward graph has a gradient for every parameter, by its path") {
  const builder g = dora_block::backward();
  CHECK(g.bad.what == formula_error::none);
  CHECK(g.out.size() == 22);
  for (const char* projection : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    for (const char* tensor : {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"}) {
      const std::string name = std::string(projection) + tensor;
      INFO(name);
      REQUIRE(g.result(name.c_str()) != none_id);
      CHECK(same_shape(g.n[g.result(name.c_str())], g.n[g.find(name.c_str())]));
    }
  CHECK(same_shape(g.n[g.result("dx")], g.n[g.find("x")]));
}

TEST_CASE("block: no weight is built after load, forward or backward") {
  for (const builder& g : {dora_block::forward(), dora_block::backward()}) {
    const stages when = schedule(g);
    const long long hidden = 4096;
    for (id i = 0; i < g.n.size(); ++i)
      if (!is_leaf(g.n[i].what) && !when.has_token_rows[i]) CHECK(nominal_count(g, i) < hidden * hidden / 16);
  }
}

TEST_CASE("block: on the CPU it is two rounds over the rows: up to keys and values, and the rest") {
  const builder g = dora_block::forward();
  const launch_plan p = fuse(g);
  CHECK(p.launches.size() == 2);
  CHECK(p.rows.rounds == 2);
  CHECK(p.breaks == 0);
  const buffers b = assign_buffers(g, p);
  int stored = 0;
  for (id i = 0; i < g.n.size(); ++i) stored += b.stored[i] ? 1 : 0;
  CHECK(stored == 3);  // queries, keys and values
  CHECK(b.cells < 8);
}

TEST_CASE("block: on a GPU every projection is one GEMM with its prologue, branch and epilogue") {
  const builder g = dora_block::forward();
  const launch_plan p = fuse(g, gpu_target);
  CHECK(p.products.size() == 7);
  for (const gemm_slots& s : p.products) {
    CHECK(s.branches.size() == 1);
    CHECK(s.epilogue_steps.size() == 1);
  }
  int residuals = 0, activations = 0;
  for (const gemm_slots& s : p.products) residuals += s.residual >= 0 ? 1 : 0, activations += s.act == op::silu ? 1 : 0;
  CHECK(residuals == 2);
  CHECK(activations == 1);
  CHECK(p.launches.size() == 16);
  CHECK(fuse(g, eager_target).launches.size() == 47);
}
