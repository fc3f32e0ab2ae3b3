// SPDX-License-Identifier: Apache-2.0
// Gemma 3 (Kamath et al. 2025, arXiv 2503.19786), its text model, is Gemma 2 with an RMS norm on each head of queries
// and keys instead of the soft cap on scores. Layers with a sliding window have angles of their own.
#pragma once
#include <graft/block/gemma2.h>

namespace graft {

struct gemma3 : gemma2 {
  static constexpr const char* name = "gemma3_text";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")};
    auto x = m.rms_norm("input_layernorm", h, 1);
    auto q = m.linear("self_attn.q_proj", x, heads, in_attention),
         k = m.linear("self_attn.k_proj", x, kv, in_attention);
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    q = m.rope(m.head_norm("self_attn.q_norm", q, d, 1)), k = m.rope(m.head_norm("self_attn.k_norm", k, d, 1));
    auto mixed = m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    return feed_forward(m, h + m.rms_norm("post_attention_layernorm", mixed, 1));
  }
};

}  // namespace graft
