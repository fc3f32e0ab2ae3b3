// SPDX-License-Identifier: Apache-2.0
// A norm between GEMMs is part of their launches if only GEMMs read it and a GEMM writes its input.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct bare : llama {
  using element = bf16;
};
struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>> {
  using element = bf16;
};
struct rotated : adapted<llama, target_modules<"gate_proj", oft<32>>> {
  using element = bf16;
};

template <class Block> builder step_of() {
  block_value v = value_of<Block>();
  v.options.cached = true;
  return capture_forward(v.formula, v.options);
}
int norms_inside(const launch_plan& p) {
  int n = 0;
  for (const gemm_launch& l : p.all<gemm_launch>()) n += l.norm >= 0 ? 1 : 0;
  return n;
}
int kernels_with(const graph& g, const launch_plan& p, long long tokens, dtype type = dtype::bf16,
                 const quant_format& how = {}) {
  size_values s = with_nominals(g, size_values{});
  g.sizes.set_tokens(s, tokens);
  return kernel_count(g, p, s, type, how);
}

}  // namespace

TEST_CASE("fused norm: the norm after O is part of O's launch, and the previous block may compute the first norm") {
  const builder all[] = {step_of<bare>(), step_of<tuned>()};
  for (const builder& b : all) {
    const graph g = b;
    const launch_plan p = fuse(g, sm_90);
    REQUIRE(norms_inside(p) == 1);
    for (const gemm_launch& l : p.all<gemm_launch>()) {
      if (l.norm < 0) continue;
      const rowwise_launch& r = p.all<rowwise_launch>()[l.norm];
      CHECK(g[r.norm].a == p.products[l.product].result);
      CHECK(p.products[l.product].residual >= 0);
      for (const id i : r.inside)
        CHECK((p.launch_of[i] == p.launch_of[l.around] && p.slot_of[i] == launch_slot::epilogue));
    }
    REQUIRE(p.input_norm >= 0);
    CHECK(g[g[p.all<rowwise_launch>()[p.input_norm].norm].a].what == op::input);
  }
}
TEST_CASE("fused norm: up to sixteen tokens in bf16 need no kernel for it, others one") {
  const builder b = step_of<tuned>();
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  target unfused = sm_90;
  unfused.can<gemm_launch>().fuses_norms = false;
  const launch_plan before = fuse(g, unfused);
  CHECK(norms_inside(before) == 0);
  CHECK(before.input_norm == -1);
  for (const long long tokens : {1, 8, 16}) CHECK(kernels_with(g, p, tokens) == kernels_with(g, before, tokens) - 1);
  for (const long long tokens : {17, 64, 512}) CHECK(kernels_with(g, p, tokens) == kernels_with(g, before, tokens));
  CHECK(kernels_with(g, p, 4, dtype::f16) == kernels_with(g, before, 4, dtype::f16));  // h ⊙ gain may not fit
  CHECK(kernels_with(g, p, 4, dtype::f32) == kernels_with(g, before, 4, dtype::f32));
}
TEST_CASE("fused norm: the first norm of the first block is part of the embedding's gather") {
  const builder b = step_of<tuned>();
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  const builder of_ids = capture_forward({llama::name, &llama::embed, true}, block_options{});
  const graph ids = of_ids;
  const launch_plan looked_up = fuse(ids, sm_90);
  auto follows_embedding = [&](long long tokens, dtype type, const quant_format& table = quant_format{}) {
    size_values s = with_nominals(g, size_values{});
    g.sizes.set_tokens(s, tokens);
    return fuses_input_norm(ids, looked_up, size_values{}, g, p, s, type, table);
  };
  for (const long long tokens : {1, 16}) CHECK(follows_embedding(tokens, dtype::bf16));
  CHECK(!follows_embedding(17, dtype::bf16));
  CHECK(!follows_embedding(1, dtype::f32));
  CHECK(!follows_embedding(1, dtype::bf16, {dtype::nf4, scale_granularity::flat_block, 64}));
}
TEST_CASE("fused norm: the first norm of a block is part of the last GEMM of the previous block") {
  const builder b = step_of<tuned>();
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  auto follows_block = [&](long long tokens, dtype type) {
    size_values s = with_nominals(g, size_values{});
    g.sizes.set_tokens(s, tokens);
    return fuses_input_norm(g, p, s, g, p, s, type);
  };
  for (const long long tokens : {1, 8, 16}) CHECK(follows_block(tokens, dtype::bf16));
  CHECK(!follows_block(17, dtype::bf16));
  CHECK(!follows_block(4, dtype::f16));
  builder no_product;
  const scope in{&no_product};
  no_product.add_output(silu(in.leaf(op::input, "x", 2, 1, 1, in.tokens(), 64)).i, "y");
  const graph ahead = no_product;
  const size_values s = with_nominals(g, size_values{});
  CHECK(!fuses_input_norm(ahead, fuse(ahead, sm_90), size_values{}, g, p, s, dtype::bf16));
}
TEST_CASE("fused norm: a rotation in a GEMM's prologue does not prevent the fusion, because it is linear") {
  const builder step = step_of<rotated>();
  const graph g = step;
  const launch_plan p = fuse(g, sm_90);
  CHECK(norms_inside(p) == 1);
  target unfused = sm_90;
  unfused.can<gemm_launch>().fuses_input_rotation = false;
  CHECK(norms_inside(fuse(g, unfused)) == 0);  // a norm that something else reads stays a launch
}
TEST_CASE("fused norm: a norm that something else reads stays a launch") {
  const block_value v = value_of<tuned>();  // the backward pass reads the norm
  const saved_pair saved =
      select_saved_tensors(capture_forward(v.formula, v.options), capture_backward(v.formula, v.options));
  CHECK(norms_inside(fuse(saved.forward, sm_90)) == 0);
  CHECK(fuse(saved.forward, sm_90).input_norm == -1);
}
