// SPDX-License-Identifier: Apache-2.0
// Gemma 2 (Riviere et al. 2024, arXiv 2408.00118) is Gemma with norms after attention and after the feed-forward layer
// too, and soft caps: scores of attention and logits x become c tanh(x / c). Every second layer has a sliding window.
#pragma once
#include <graft/block/gemma.h>

namespace graft {

struct gemma2 : gemma {
  static constexpr const char* name = "gemma2";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")};
    auto x = m.rms_norm("input_layernorm", h, 1);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads, in_attention));
    auto k = m.rope(m.linear("self_attn.k_proj", x, kv, in_attention));
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    auto mixed = m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    return feed_forward(m, h + m.rms_norm("post_attention_layernorm", mixed, 1));
  }
  static constexpr ex head(block_scope m, ex h) { return m.soft_capped(gemma::head(m, h), "logit_soft_cap"); }

 protected:
  static constexpr ex feed_forward(block_scope m, ex h) {
    auto x = m.rms_norm("pre_feedforward_layernorm", h, 1);
    auto gate = m.linear("mlp.gate_proj", x, m.size("intermediate"));
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"));
    auto down = m.linear("mlp.down_proj", mul(m.activated(gate, op::gelu_tanh), up), h.cols());
    return h + m.rms_norm("post_feedforward_layernorm", down, 1);
  }
};

}  // namespace graft
