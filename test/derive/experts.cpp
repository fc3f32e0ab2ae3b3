// SPDX-License-Identifier: Apache-2.0
// Graphs of mixtures: one graph without breaks, forward and backward, whose costs count the rows that experts have.
#include <graft/blocks.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

struct sized : mixtral {
  static constexpr named_size sizes[] = {{"hidden", 64},           {"intermediate", 96},    {"heads", 4},
                                         {"kv_heads", 2},          {"head_dim", 16},        {"experts", 8},
                                         {"moe_intermediate", 96}, {"experts_per_token", 2}};
};
struct more_experts : mixtral {
  static constexpr named_size sizes[] = {{"hidden", 64},           {"intermediate", 96},    {"heads", 4},
                                         {"kv_heads", 2},          {"head_dim", 16},        {"experts", 32},
                                         {"moe_intermediate", 96}, {"experts_per_token", 2}};
};
struct tuned : adapted<sized, target_modules<"experts.*_proj", lora<4>>, target_modules<"experts.down_proj", dora<4>>> {
};

constexpr int count_of(const graph& g, op what) {
  int n = 0;
  for (id i = 0; i < g.size; ++i) n += g[i].what == what ? 1 : 0;
  return n;
}
// W + B A is a product and a low-rank branch of the rows: no node has the shape of a weight but the weights themselves.
constexpr bool builds_weight(const graph& g) {
  const size_values s = block_sizes<tuned>(g);
  for (id i = 0; i < g.size; ++i)
    if (!is_leaf(g[i].what) && g.sizes.value(g[i].d[1], s) == 8 && g.sizes.value(g[i].d[2], s) >= 64 &&
        g.sizes.value(g[i].d[3], s) >= 64)
      return true;
  return false;
}

}  // namespace

TEST_CASE("experts: one graph without breaks, with W' built nowhere") {
  using plan = compile<tuned, fullgraph, training>;
  BOTH(plan::graph_breaks == 0);
  using d = derived_block<tuned>;
  BOTH(count_of(d::forward, op::route) == 1);
  BOTH(count_of(d::forward, op::grouped_matmul) == 6);  // two weights, each with A and B
  BOTH(count_of(d::backward, op::grouped_wgrad) == 4);
  BOTH(!builds_weight(d::forward));
  BOTH(!builds_weight(d::backward));
}

TEST_CASE("experts: costs count the rows that experts have, and the weights that are read") {
  // Twenty-four further experts cost the router's scores alone.
  constexpr long long tokens = 100, further = 24;
  BOTH(compile<more_experts>::forward_cost(tokens).flops - compile<sized>::forward_cost(tokens).flops ==
       tokens * further * (2 * 64 + 8));
  // One token reads the weights of two experts, whatever their number.
  constexpr long long of_router = further * 64 * 4;
  BOTH(compile<more_experts>::forward_cost(1).bytes - compile<sized>::forward_cost(1).bytes == of_router);
  BOTH(compile<more_experts>::forward_cost(tokens).bytes - compile<sized>::forward_cost(tokens).bytes ==
       of_router + further * (2 * 96 * 64 + 64 * 96) * 4);
}
