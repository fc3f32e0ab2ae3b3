// SPDX-License-Identifier: Apache-2.0
// Qwen2-MoE (Qwen1.5-MoE and Qwen2-57B, arXiv 2407.10671): one expert is shared by all
// rows, with a sigmoid gate of its own. Layers may be dense ("sparse_layer" says which are not), and
// "router_over_chosen" says that the weights of the chosen experts are a softmax of their own scores.
#pragma once
#include <graft/block/mixtral.h>

namespace graft {

struct qwen2_moe : llama {
  static constexpr const char* name = "qwen2_moe";
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.in = bias{m.has("attention_bias")}});
    auto x = m.rms_norm("post_attention_layernorm", h);
    if (!m.has("sparse_layer")) return h + gated_layer(m.in("mlp"), x, m.size("intermediate"));
    auto chosen = gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, m.has("router_over_chosen")));
    auto shared = gated_layer(m.in("mlp.shared_expert"), x, m.size("shared_intermediate"));
    return h + (chosen + mul(sigmoid(m.linear("mlp.shared_expert_gate", x, 1)), shared));
  }
};

}  // namespace graft
