// SPDX-License-Identifier: Apache-2.0
// Defines a decoder block of your own, which is one formula: attention and MLP in parallel, both on one norm, as in
// GPT-J and PaLM. Patterns say which layers have adapters. The rest of this file uses what the library derives from the
// formula.
#include <graft/blocks.h>
#include <graft/run/print_plan.h>

struct parallel_block {
  static constexpr const char* name = "parallel";
  static constexpr graft::ex run(graft::block_scope m, graft::ex h) {
    const graft::extent width = m.size("heads") * m.size("head_dim");
    auto x = m.layer_norm("norm", h);
    auto q = m.rope(m.linear("attn.q_proj", x, width)), k = m.rope(m.linear("attn.k_proj", x, width));
    auto a = m.linear("attn.o_proj", m.attention(q, k, m.linear("attn.v_proj", x, width)), h.cols());
    auto f = m.linear("mlp.down_proj", gelu(m.linear("mlp.up_proj", x, m.size("intermediate"))), h.cols());
    return h + a + f;
  }
};
struct tuned : graft::adapted<parallel_block, graft::target_modules<"*_proj", graft::lora<16>>,
                              graft::target_modules<"down_proj", graft::dora<8>>> {};

using facts = graft::compile<tuned, graft::fullgraph, graft::training>;
static_assert(facts::kernels == 3 && facts::graph_breaks == 0);

int main() {
  graft::explain<tuned>(512);
  return facts::saved_bytes(512) > 0 ? 0 : 1;
}
