// SPDX-License-Identifier: Apache-2.0
// A block of one's own is one formula: attention and a feed-forward part side by side, both on the same norm, as in GPT-J
// and PaLM. Adapters stand where a pattern says; the rest of this file is what the library makes of those lines.
#include <graft/blocks.h>
#include <graft/run/print.h>
using namespace graft;

struct parallel_block {
  static constexpr const char* name = "parallel";
  static constexpr ex run(block_scope m, ex h) {
    const extent width = m.size("heads") * m.size("head_dim");
    auto x = m.layer_norm("norm", h);
    auto q = m.rope(m.linear("attn.q_proj", x, width)), k = m.rope(m.linear("attn.k_proj", x, width));
    auto a = m.linear("attn.o_proj", m.attention(q, k, m.linear("attn.v_proj", x, width)), h.cols());
    auto f = m.linear("mlp.down_proj", gelu(m.linear("mlp.up_proj", x, m.size("intermediate"))), h.cols());
    return h + a + f;
  }
};
struct tuned : adapted<parallel_block, on<"*_proj", lora<16>>, on<"down_proj", dora<8>>> {};

using facts = compile<tuned, fullgraph, training>;
static_assert(facts::kernels == 3 && facts::graph_breaks == 0);

int main() {
  explain<tuned>(512);
  return facts::kept_bytes(512) > 0 ? 0 : 1;
}
