// SPDX-License-Identifier: Apache-2.0
// Qwen2-MoE (Qwen1.5-MoE and Qwen2-57B, arXiv 2407.10671): one expert is shared by all
// rows, with a sigmoid gate of its own. Layers may be dense ("sparse_layer" says which are not), and
// "router_over_chosen" says that the weights of the chosen experts are a softmax of their own scores.
#pragma once
#include <graft/block/mixtral.h>

namespace graft {

// The feed-forward layer of Llama below `name`.
constexpr ex gated_layer(block_scope m, const char* gate_proj, const char* up_proj, const char* down_proj, ex x,
                         extent inner) {
  auto gate = m.linear(gate_proj, x, inner), up = m.linear(up_proj, x, inner);
  return m.linear(down_proj, mul(m.activated(gate, op::silu), up), x.cols());
}

struct qwen2_moe : llama {
  static constexpr const char* name = "qwen2_moe";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")};
    auto x = m.rms_norm("input_layernorm", h);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads, in_attention));
    auto k = m.rope(m.linear("self_attn.k_proj", x, kv, in_attention));
    auto v = m.linear("self_attn.v_proj", x, kv, in_attention);
    h = h + m.linear("self_attn.o_proj", m.attention(q, k, v), hidden);
    x = m.rms_norm("post_attention_layernorm", h);
    if (!m.has("sparse_layer"))
      return h + gated_layer(m, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", x, m.size("intermediate"));
    auto chosen = gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, m.has("router_over_chosen")));
    auto shared = gated_layer(m, "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
                              "mlp.shared_expert.down_proj", x, m.size("shared_intermediate"));
    return h + (chosen + mul(sigmoid(m.linear("mlp.shared_expert_gate", x, 1)), shared));
  }
};

}  // namespace graft
