// SPDX-License-Identifier: Apache-2.0
// The bytes and flops of a launch, and the estimated time.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/plan/launch_cost.h>
#include <graft/targets.h>

using namespace graft;

TEST_CASE("launch cost: every value that a launch reads or writes moves once") {
  struct layer : linear<1024, 4096, bf16, lora<16>> {};
  const graph g = derived_of<layer>::forward;
  const launch_plan p = fuse(g, sm_90);
  size_values s = static_sizes<layer>(g);
  g.sizes.set_tokens(s, 8);
  REQUIRE(p.launches.size() == 1);
  const launch_estimate price = estimate_launch(g, p, 0, s, dtype::bf16, 0);
  const long long weights = 1024LL * 4096 + 16 * (1024 + 4096), rows = 8 * (1024 + 4096);
  CHECK(price.bytes == 2 * (weights + rows));
  CHECK(price.flops >= 2 * 8 * weights);
  CHECK(price.kernels == 1);
  CHECK(price.roofline_seconds(sm_90) == doctest::Approx(static_cast<double>(price.bytes) / 4.3e12));
  CHECK(price.expected_seconds(sm_90) ==
        doctest::Approx(price.roofline_seconds(sm_90) + sm_90.launch_overhead_seconds));
  CHECK(price.roofline_seconds(cpu_target) == 0);
}
TEST_CASE("launch cost: attention reads the slots of the KV cache in the ranges of its rows, a gather its rows") {
  block_value v = value_of<llama>();
  v.options.cached = true;
  const builder b = capture_forward(v.formula, v.options);
  const graph g = b;
  const launch_plan p = fuse(g, sm_90);
  size_values s = with_nominals(g, size_values{});
  g.sizes.set_tokens(s, 4);
  for (int k = 0; k < p.launches.size(); ++k)
    if (p.launches[k].is<attention_launch>()) {
      const auto at = [&](long long seen) { return estimate_launch(g, p, k, s, dtype::bf16, seen).bytes; };
      const id cache = g.find("kv_cache");
      REQUIRE(cache >= 0);
      CHECK(at(1000) - at(0) == 2 * 4 * 1000 * g.sizes.value(g[cache].d[3], s));
    }
  for (const launch& l : p.launches) CHECK(kernel_count(g, p, l, s, dtype::bf16, {}) >= 1);
}
