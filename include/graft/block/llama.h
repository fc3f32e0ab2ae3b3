// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al. 2023, arXiv 2302.13971), and Mistral, whose sliding window is in the attention ranges of a
// call: RoPE, RMSNorm, SwiGLU. Q, K, V, O are the projections of attention, G, U, D gate, up and down.
//     h = h + O attention(rope(Q x), rope(K x), V x),  x = norm(h)          h = h + D (silu(G x) ⊙ U x),  x = norm(h)
#pragma once
#include <graft/derive/block.h>

namespace graft {

struct llama {
  static constexpr const char *name = "llama", *layers = "model.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    return m.embedding("model.embed_tokens", ids, m.size("vocab"), m.size("hidden"));
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")}, in_mlp{m.has("mlp_bias")};
    auto x = m.rms_norm("input_layernorm", h);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads, in_attention));
    auto k = m.rope(m.linear("self_attn.k_proj", x, kv, in_attention));
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    h = h + m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    x = m.rms_norm("post_attention_layernorm", h);
    auto gate = m.linear("mlp.gate_proj", x, m.size("intermediate"), in_mlp);
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"), in_mlp);
    return h + m.linear("mlp.down_proj", mul(m.activated(gate, op::silu), up), hidden, in_mlp);
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.rms_norm("model.norm", h), m.size("vocab"));
  }
};

struct mistral : llama {
  static constexpr const char* name = "mistral";
};

}  // namespace graft
