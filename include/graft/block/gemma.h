// SPDX-License-Identifier: Apache-2.0
// Gemma (Mesnard et al. 2024, arXiv 2403.08295): the embedding is scaled by √hidden, RMS norms store w - 1, and the
// feed-forward layer is GeGLU with the tanh form of GELU.
#pragma once
#include <graft/derive/block.h>

namespace graft {

struct gemma {
  static constexpr const char *name = "gemma", *layers = "model.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    auto h = m.embedding("model.embed_tokens", ids, m.size("vocab"), m.size("hidden"));
    return sqrt(m.root().number(h.cols())) * h;
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")};
    auto x = m.rms_norm("input_layernorm", h, 1);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads, in_attention));
    auto k = m.rope(m.linear("self_attn.k_proj", x, kv, in_attention));
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    h = h + m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    x = m.rms_norm("post_attention_layernorm", h, 1);
    auto gate = m.linear("mlp.gate_proj", x, m.size("intermediate"));
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"));
    return h + m.linear("mlp.down_proj", mul(m.activated(gate, op::gelu_tanh), up), hidden);
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.rms_norm("model.norm", h, 1), m.size("vocab"));
  }
};

}  // namespace graft
