// SPDX-License-Identifier: Apache-2.0
// OLMo 2 (Walsh et al. 2025, arXiv 2501.00656) is Llama with its norms after attention and after the feed-forward layer
// instead of before, and an RMS norm over all heads of queries and of keys.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct olmo2 : llama {
  static constexpr const char* name = "olmo2";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")};
    auto q = m.rope(m.rms_norm("self_attn.q_norm", m.linear("self_attn.q_proj", h, heads, in_attention)));
    auto k = m.rope(m.rms_norm("self_attn.k_norm", m.linear("self_attn.k_proj", h, kv, in_attention)));
    auto v = m.linear("self_attn.v_proj", h, kv, in_attention);
    auto attended = m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    h = h + m.rms_norm("post_attention_layernorm", attended);
    return h + m.rms_norm("post_feedforward_layernorm", gated_layer(m.in("mlp"), h, m.size("intermediate")));
  }
};

}  // namespace graft
