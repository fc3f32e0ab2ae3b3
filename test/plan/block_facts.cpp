// SPDX-License-Identifier: Apache-2.0
#include <graft/blocks.h>

#include "../support/gpu_target.h"
#include "../support/static_check.h"

using namespace graft;

namespace {

struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>, target_modules<"v_proj", dora<8>>> {
  static constexpr named_size sizes[] = {
      {"hidden", 4096}, {"heads", 32}, {"kv_heads", 8}, {"head_dim", 128}, {"intermediate", 14336}};
};
struct bare : llama {
  static constexpr named_size sizes[] = {
      {"hidden", 4096}, {"heads", 32}, {"kv_heads", 8}, {"head_dim", 128}, {"intermediate", 14336}};
};
struct half : bare {
  using element = bf16;
};
using facts = compile<tuned, fullgraph, training>;

}  // namespace

TEST_CASE("block facts: three launches on the CPU: up to keys and values, attention, and the rest") {
  BOTH(facts::kernels == 3);
  BOTH(facts::graph_breaks == 0);
  BOTH((compile<bare, fullgraph>::kernels == 3));
  BOTH((compile<gpt2, fullgraph>::kernels == 3));
}

TEST_CASE("block facts: flops are those of the GEMMs and of attention") {
  constexpr long long hidden = 4096, kv = 1024, wide = 14336, tokens = 100;
  constexpr long long products = 2 * tokens * hidden * (2 * hidden + 2 * kv + 3 * wide);
  constexpr long long attention = 2 * tokens * tokens * hidden;
  constexpr long long flops = compile<bare>::flops(tokens);
  BOTH(flops > products + attention);
  BOTH(flops < products + attention + products / 500);
  BOTH(facts::flops(tokens) < flops + flops / 50);
  BOTH(compile<half>::bytes(1) < compile<bare>::bytes(1) * 51 / 100);
}

TEST_CASE(
    "block facts: bytes saved for backward grow with the tokens, and a bare block saves at least what its backward "
    "reads") {
  BOTH(facts::saved_bytes(200) == 2 * facts::saved_bytes(100));
  // Saved: queries, keys and values; the output of attention; the sum after it; gate and up; the inputs of GEMMs, which
  // are both norms and the gated values; and little more.
  constexpr long long floats = 4096 + 2 * 1024 + 4096 + 4096 + 2 * 14336 + 2 * 4096 + 14336;
  BOTH(facts::saved_bytes(1) >= 4 * floats);
  BOTH(facts::saved_bytes(1) < 4 * floats * 11 / 10);
}

TEST_CASE("block facts: a block type with other adapters has another key, one with other sizes the same") {
  struct small : adapted<llama, target_modules<"*_proj", lora<16>>, target_modules<"v_proj", dora<8>>> {};
  BOTH(compile<small>::key == facts::key);
  BOTH(compile<bare>::key != facts::key);
}

TEST_CASE("block facts: a GPU reports what it has no kernel for") {
  constexpr bool breaks = compile<tuned, for_target<test::gpu_target>>::graph_breaks == 0;
  CHECK(breaks);  // the target of these tests has every kernel
  const graph g = derived_block<tuned>::forward;
  target without = test::gpu_target;
  without.can<nodes_launch>().runs = [](op o) { return traits_of(o).kind != op_class::attention; };
  const launch_plan p = fuse(g, without);
  CHECK(p.breaks == 1);
  CHECK(g[p.first_break].what == op::attention);
}

TEST_CASE("block facts: explain names the layers") {
  std::string all;
  explain<tuned>([&](const text& t) { all += std::string(t.c_str()) + "\n"; }, 64);
  for (const char* words : {"llama block f32, 64 tokens", "saved for backward", "launch 1: attention",
                            "t5 @ self_attn.q_proj.weight'", "mlp.down_proj.lora_B.weight"})
    CHECK(all.find(words) != std::string::npos);
  std::string drawn;
  const graph g = compile<tuned>::forward_graph();
  draw(g, fuse(g), drawing::mermaid, [&](const text& t) { drawn += t.c_str(); });
  CHECK(drawn.find("launch 1: attention") != std::string::npos);
}
