// SPDX-License-Identifier: Apache-2.0
// Asserts what is known of a layer before anything runs: how many kernels it takes, what it costs, whether it can be
// merged. It needs the language alone, and prints what was derived. Change the adapter and see which assertion fails.
#include <graft/graft.h>
#include <graft/run/print_plan.h>

// An adapter is one formula. This one is DoRA: LoRA whose rows have a magnitude of their own.
template <int Rank> struct my_dora {
  static constexpr const char* name = "my DoRA";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto V =
        W + p.scalar("scaling") * (p.param("lora_B.weight", W.rows(), Rank) * p.param("lora_A.weight", Rank, W.cols()));
    return (p.param("magnitude", W.rows()) / detach(row_norm(V))) * V;
  }
};

struct bare : graft::linear<1024, 1024> {};
struct q_proj : graft::linear<1024, 1024, float, my_dora<16>> {};

using facts = graft::compile<q_proj, graft::fullgraph, graft::training>;
static_assert(facts::kernels == 1 && facts::graph_breaks == 0);  // the adapter is inside the base product
static_assert(facts::mergeable && !facts::unmergeable);          // W occurs twice in the formula
static_assert(graft::forward_cost<q_proj>(512).flops < 1.04 * graft::forward_cost<bare>(512).flops);

int main() { graft::explain<q_proj>(512); }
