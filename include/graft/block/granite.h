// SPDX-License-Identifier: Apache-2.0
// Granite (IBM 2024) is Llama with numbers of the configuration as factors: of the embedding, of what a block adds, of
// the scores of attention (its attention_factor), and 1 / logits_scaling of the logits.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct granite : llama {
  static constexpr const char* name = "granite";
  static constexpr ex embed(block_scope m, ex ids) {
    return m.root().scalar("embedding_multiplier") * llama::embed(m, ids);
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")}, in_mlp{m.has("mlp_bias")};
    auto by = m.root().scalar("residual_multiplier");
    auto x = m.rms_norm("input_layernorm", h);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads, in_attention));
    auto k = m.rope(m.linear("self_attn.k_proj", x, kv, in_attention));
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    h = h + by * m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    x = m.rms_norm("post_attention_layernorm", h);
    auto gate = m.linear("mlp.gate_proj", x, m.size("intermediate"), in_mlp);
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"), in_mlp);
    return h + by * m.linear("mlp.down_proj", mul(m.activated(gate, op::silu), up), hidden, in_mlp);
  }
  static constexpr ex head(block_scope m, ex h) { return llama::head(m, h) / m.root().scalar("logits_scaling"); }
};

}  // namespace graft
