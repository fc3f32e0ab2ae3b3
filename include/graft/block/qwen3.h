// SPDX-License-Identifier: Apache-2.0
// Qwen3 (Yang et al. 2025, arXiv 2505.09388) is Llama with an RMS norm on each head of queries and keys.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct qwen3 : llama {
  static constexpr const char* name = "qwen3";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")};
    auto x = m.rms_norm("input_layernorm", h);
    auto q = m.linear("self_attn.q_proj", x, heads, in_attention),
         k = m.linear("self_attn.k_proj", x, kv, in_attention);
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    q = m.rope(m.head_norm("self_attn.q_norm", q, d)), k = m.rope(m.head_norm("self_attn.k_norm", k, d));
    h = h + m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    x = m.rms_norm("post_attention_layernorm", h);
    auto gate = m.linear("mlp.gate_proj", x, m.size("intermediate"));
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"));
    return h + m.linear("mlp.down_proj", mul(m.activated(gate, op::silu), up), hidden);
  }
};

}  // namespace graft
