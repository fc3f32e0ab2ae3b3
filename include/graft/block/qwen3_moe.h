// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (Yang et al. 2025, arXiv 2505.09388) is Qwen3 with experts, without a shared one; layers may be dense.
#pragma once
#include <graft/block/qwen2_moe.h>

namespace graft {

struct qwen3_moe : llama {
  static constexpr const char* name = "qwen3_moe";
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
    if (!m.has("sparse_layer"))
      return h + gated_layer(m, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", x, m.size("intermediate"));
    return h + gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, m.has("router_over_chosen")));
  }
};

}  // namespace graft
