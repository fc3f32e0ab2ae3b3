// SPDX-License-Identifier: Apache-2.0
// Launches between the products of a block: a norm with its factors and its gradient, heads side by side.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct tuned : adapted<llama, on<"*_proj", lora<16>>> {
  using element = bf16;
};
static_assert(compile<tuned, fullgraph, on<sm_90>>::kernels == 7);

builder forward_of(bool cached) {
  block_value v = value_of<tuned>();
  v.how.cached = cached;
  return capture_forward(v.formula, v.how);
}
int with_rows(const plan& p) {
  int n = 0;
  for (const launch& l : p.launches) n += l.rows >= 0 ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("row_launch: a token step of a block on a GPU is six launches, with the heads inside attention") {
  const builder b = forward_of(true);
  const plan p = fuse(b, sm_90);
  CHECK(p.products.size() == 7);
  CHECK(with_rows(p) == 2);
  CHECK(p.launches.size() == 6);  // a norm; Q, K and V; attention; O with the other norm; silu(gate) ⊙ up; down
  const plan without_cache = fuse(forward_of(false), sm_90);
  CHECK(with_rows(without_cache) == 2);
  CHECK(without_cache.launches.size() == 7);
  for (const row_launch& r : p.row_launches)
    for (const id i : r.inside) CHECK(p.launch_of[i] == p.launch_of[r.result]);
}
TEST_CASE("row_launch: heads side by side take in both turns and the look-up of their angles") {
  const builder b = forward_of(false);
  const plan p = fuse(b, sm_90);
  const row_launch* heads = nullptr;
  for (const row_launch& r : p.row_launches)
    if (!r.parts.empty()) heads = &r;
  REQUIRE(heads != nullptr);
  REQUIRE(heads->parts.size() == 3);
  CHECK(heads->parts[0].turned);
  CHECK(heads->parts[1].turned);
  CHECK(!heads->parts[2].turned);
  CHECK(heads->inside.size() == 5);
  CHECK(b.n[heads->table].what == op::frozen);
  CHECK(b.n[heads->positions].what == op::ids);
}
TEST_CASE("row_launch: what training keeps is stored, and so no part of another launch") {
  const block_value v = value_of<tuned>();
  const builder forward = capture_forward(v.formula, v.how), backward = capture_backward(v.formula, v.how);
  const kept_pair kept = keep(forward, backward);
  const graph g = kept.forward;
  const plan p = fuse(g, sm_90);
  CHECK(!p.row_launches.empty());
  for (const row_launch& r : p.row_launches)
    for (int k = 0; k < g.outs; ++k)
      for (const id i : r.inside) CHECK((i == r.result || g.out[k].at != i));
}
TEST_CASE("row_launch: the gradient of a norm takes in its factors and what is added; branches join their products") {
  const block_value v = value_of<tuned>();
  const kept_pair kept = keep(capture_forward(v.formula, v.how), capture_backward(v.formula, v.how));
  const graph g = kept.backward;
  const plan p = fuse(g, sm_90);
  int gradients = 0;
  for (const row_launch& r : p.row_launches) {
    if (r.slope < 0) continue;
    ++gradients;
    CHECK(g[r.norm].what == op::normalize_grad);
    CHECK(r.inside.size() == 3);
    CHECK(r.scale >= 0);
    CHECK(r.added >= 0);
    CHECK(g[r.result].what == op::add);
  }
  CHECK(gradients == 2);
  CHECK(p.products.size() == 7);  // none for a branch alone, although sums stand between Q, K, V, gate, up and theirs
  for (const product_slots& s : p.products) CHECK(s.sides.size() == 1);
}
TEST_CASE("row_launch: a target without such kernels gets single launches") {
  target plain = sm_90;
  plain.joins_rows = false;
  const plan p = fuse(forward_of(true), plain);
  CHECK(p.row_launches.empty());
  CHECK(p.launches.size() == 14);
}
