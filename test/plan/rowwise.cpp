// SPDX-License-Identifier: Apache-2.0
// Row-wise launches between the GEMMs of a block: a norm with its factors, its gradient, and concatenated heads with
// RoPE.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>> {
  using element = bf16;
};
static_assert(compile<tuned, fullgraph, for_target<sm_90>>::kernels == 8);

builder forward_of(bool cached) {
  block_value v = value_of<tuned>();
  v.options.cached = cached;
  return capture_forward(v.formula, v.options);
}
int with_rows(const launch_plan& p) {
  int n = 0;
  for (const launch& l : p.launches) {
    const attention_launch* const a = p.as<attention_launch>(l);
    n += l.is<rowwise_launch>() || (a != nullptr && a->heads >= 0) ? 1 : 0;
  }
  return n;
}

}  // namespace

TEST_CASE("rowwise: a token step of a block on a GPU is seven launches, with the heads inside attention") {
  const builder b = forward_of(true);
  const launch_plan p = fuse(b, sm_90);
  CHECK(p.products.size() == 7);
  CHECK(with_rows(p) == 3);
  CHECK(p.launches.size() == 7);  // a norm; Q, K and V; attention; O; the other norm; silu(gate) ⊙ up; down
  const launch_plan without_cache = fuse(forward_of(false), sm_90);
  CHECK(with_rows(without_cache) == 3);
  CHECK(without_cache.launches.size() == 8);
  for (const rowwise_launch& r : p.all<rowwise_launch>())
    for (const id i : r.inside) CHECK(p.launch_of[i] == p.launch_of[r.result]);
}
TEST_CASE("rowwise: concatenating the heads includes both RoPEs and the gather of their angles") {
  const builder b = forward_of(false);
  const launch_plan p = fuse(b, sm_90);
  const rowwise_launch* heads = nullptr;
  for (const rowwise_launch& r : p.all<rowwise_launch>())
    if (!r.parts.empty()) heads = &r;
  REQUIRE(heads != nullptr);
  REQUIRE(heads->parts.size() == 3);
  CHECK(heads->parts[0].has_rope);
  CHECK(heads->parts[1].has_rope);
  CHECK(!heads->parts[2].has_rope);
  CHECK(heads->inside.size() == 5);
  CHECK(b.n[heads->table].what == op::frozen);
  CHECK(b.n[heads->positions].what == op::ids);
}
TEST_CASE("rowwise: a value that is saved for backward is never internal to a row-wise launch") {
  const block_value v = value_of<tuned>();
  const builder forward = capture_forward(v.formula, v.options), backward = capture_backward(v.formula, v.options);
  const saved_pair saved = select_saved_tensors(forward, backward);
  const graph g = saved.forward;
  const launch_plan p = fuse(g, sm_90);
  CHECK(!p.all<rowwise_launch>().empty());
  for (const rowwise_launch& r : p.all<rowwise_launch>())
    for (int k = 0; k < g.outs; ++k)
      for (const id i : r.inside) CHECK((i == r.result || g.out[k].at != i));
}
TEST_CASE("rowwise: the gradient of a norm includes its weight and the residual; branches join their GEMMs") {
  const block_value v = value_of<tuned>();
  const saved_pair saved =
      select_saved_tensors(capture_forward(v.formula, v.options), capture_backward(v.formula, v.options));
  const graph g = saved.backward;
  const launch_plan p = fuse(g, sm_90);
  int gradients = 0;
  for (const rowwise_launch& r : p.all<rowwise_launch>()) {
    if (r.grad_output < 0) continue;
    ++gradients;
    CHECK(g[r.norm].what == op::normalize_grad);
    CHECK(r.inside.size() == 3);
    CHECK(r.scale >= 0);
    CHECK(r.residual >= 0);
    CHECK(g[r.result].what == op::add);
  }
  CHECK(gradients == 2);
  CHECK(p.products.size() == 7);  // no branch is a GEMM of its own, although dx sums Q, K and V, and gate and up
  for (const gemm_slots& s : p.products) CHECK(s.branches.size() == 1);
}
TEST_CASE("rowwise: a target without such kernels gets single launches") {
  target plain = sm_90;
  plain.can<rowwise_launch>().fused = false;
  const launch_plan p = fuse(forward_of(true), plain);
  CHECK(p.all<rowwise_launch>().empty());
  CHECK(p.launches.size() == 14);
}
