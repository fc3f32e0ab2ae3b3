// SPDX-License-Identifier: Apache-2.0
// A norm between products is part of their launches: where only products read it, and one writes what it reads.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct bare : llama {
  using element = bf16;
};
struct tuned : adapted<llama, on<"*_proj", lora<16>>> {
  using element = bf16;
};
struct turned : adapted<llama, on<"gate_proj", oft<32>>> {
  using element = bf16;
};

template <class Block> builder step_of() {
  block_value v = value_of<Block>();
  v.how.cached = true;
  return capture_forward(v.formula, v.how);
}
int norms_inside(const plan& p) {
  int n = 0;
  for (const launch& l : p.launches) n += l.norm >= 0 ? 1 : 0;
  return n;
}
int kernels_with(const graph& g, const plan& p, long long tokens, dtype type = dtype::bf16, const encoding& how = {}) {
  size_values s = with_nominals(g, size_values{});
  g.sizes.set_tokens(s, tokens);
  return kernels_of(g, p, s, type, how);
}

}  // namespace

TEST_CASE("norm_between: the norm behind O is part of O's launch, and the first one may be done by the block before") {
  const builder all[] = {step_of<bare>(), step_of<tuned>()};
  for (const builder& b : all) {
    const graph g = b;
    const plan p = fuse(g, sm_90);
    REQUIRE(norms_inside(p) == 1);
    for (const launch& l : p.launches) {
      if (l.norm < 0) continue;
      const row_launch& r = p.row_launches[l.norm];
      CHECK(g[r.norm].a == p.products[l.product].result);
      CHECK(p.products[l.product].residual >= 0);
      for (const id i : r.inside) CHECK((p.launch_of[i] == p.launch_of[l.anchor] && p.place[i] == slot::post));
    }
    REQUIRE(p.norm_of_input >= 0);
    CHECK(g[g[p.row_launches[p.norm_of_input].norm].a].what == op::input);
  }
}
TEST_CASE("norm_between: up to sixteen tokens in bf16 take no kernel for it, others one") {
  const builder b = step_of<tuned>();
  const graph g = b;
  const plan p = fuse(g, sm_90);
  target apart = sm_90;
  apart.carries_norms = false;
  const plan before = fuse(g, apart);
  CHECK(norms_inside(before) == 0);
  CHECK(before.norm_of_input == -1);
  for (const long long tokens : {1, 8, 16}) CHECK(kernels_with(g, p, tokens) == kernels_with(g, before, tokens) - 1);
  for (const long long tokens : {17, 64, 512}) CHECK(kernels_with(g, p, tokens) == kernels_with(g, before, tokens));
  CHECK(kernels_with(g, p, 4, dtype::f16) == kernels_with(g, before, 4, dtype::f16));  // h ⊙ gain may not fit
  CHECK(kernels_with(g, p, 4, dtype::f32) == kernels_with(g, before, 4, dtype::f32));
}
TEST_CASE("norm_between: the first norm of the first block is inside the look-up of the ids") {
  const builder b = step_of<tuned>();
  const graph g = b;
  const plan p = fuse(g, sm_90);
  const builder of_ids = capture_forward({llama::name, &llama::embed, true}, block_options{});
  const graph ids = of_ids;
  const plan looked_up = fuse(ids, sm_90);
  auto behind_ids = [&](long long tokens, dtype type, const encoding& table = encoding{}) {
    size_values s = with_nominals(g, size_values{});
    g.sizes.set_tokens(s, tokens);
    return takes_first_norm(ids, looked_up, size_values{}, g, p, s, type, table);
  };
  for (const long long tokens : {1, 16}) CHECK(behind_ids(tokens, dtype::bf16));
  CHECK(!behind_ids(17, dtype::bf16));
  CHECK(!behind_ids(1, dtype::f32));
  CHECK(!behind_ids(1, dtype::bf16, {dtype::nf4, scaled_by::run, 64}));
}
TEST_CASE("norm_between: the first norm of a block is inside the last product of the block before") {
  const builder b = step_of<tuned>();
  const graph g = b;
  const plan p = fuse(g, sm_90);
  auto behind_itself = [&](long long tokens, dtype type) {
    size_values s = with_nominals(g, size_values{});
    g.sizes.set_tokens(s, tokens);
    return takes_first_norm(g, p, s, g, p, s, type);
  };
  for (const long long tokens : {1, 8, 16}) CHECK(behind_itself(tokens, dtype::bf16));
  CHECK(!behind_itself(17, dtype::bf16));
  CHECK(!behind_itself(4, dtype::f16));
  builder no_product;
  const scope in{&no_product};
  no_product.give(silu(in.leaf(op::input, "x", 2, 1, 1, in.tokens(), 64)).i, "y");
  const graph ahead = no_product;
  const size_values s = with_nominals(g, size_values{});
  CHECK(!takes_first_norm(ahead, fuse(ahead, sm_90), size_values{}, g, p, s, dtype::bf16));
}
TEST_CASE("norm_between: rotations ahead of products are linear too, where they are part of their launch") {
  const builder step = step_of<turned>();
  const graph g = step;
  const plan p = fuse(g, sm_90);
  CHECK(norms_inside(p) == 1);
  target apart = sm_90;
  apart.turns_inputs = false;
  CHECK(norms_inside(fuse(g, apart)) == 0);  // a norm that something else reads stays a launch
}
TEST_CASE("norm_between: a norm that something else reads stays a launch") {
  const block_value v = value_of<tuned>();  // what is kept for the backward pass
  const kept_pair kept = keep(capture_forward(v.formula, v.how), capture_backward(v.formula, v.how));
  CHECK(norms_inside(fuse(kept.forward, sm_90)) == 0);
  CHECK(fuse(kept.forward, sm_90).norm_of_input == -1);
}
