// SPDX-License-Identifier: Apache-2.0
// gpt-oss (OpenAI 2025, arXiv 2508.10925): every layer has a bias and experts, every other layer a sliding window,
// every query head an attention sink. The experts' weights are stored [experts, in, out] with a bias for each expert,
// gates and ups alternate in their columns, and SwiGLU is clamped:
//     (min(max(u, -c), c) + 1) ⊙ g σ(α g),  g = min(gate, c)
#pragma once
#include <graft/block/mixtral.h>

namespace graft {

struct gpt_oss : llama {
  static constexpr const char* name = "gpt_oss";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols();
    const bias b{m.has("attention_bias")};
    const ex sinks = m.at("self_attn").leaf(op::base, "sinks", 1, 1, 1, m.size("heads"), 1);
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.in = b, .out = b, .sinks = sinks});
    auto x = m.rms_norm("post_attention_layernorm", h);
    const extent k_experts = m.size("experts_per_token");
    auto scores = m.linear("mlp.router", x, m.size("experts"), bias::yes);
    return h +
           m.experts("mlp.experts", x, {scores, topk_softmax(scores, k_experts), k_experts}, [&](block_scope e, ex r) {
             const extent inner = e.size("moe_intermediate"), rows = r.rows();
             const ex limit = m.root().scalar("swiglu_limit"), alpha = m.root().scalar("swiglu_alpha");
             auto both = e.expert_bias("gate_up_proj_bias", e.conv1d("gate_up_proj", r, 2 * inner));
             auto pairs = reshape(both, rows, inner, 2);
             auto gate = min(reshape(slice(pairs, 3, 0, 1), rows, inner), limit);
             auto up = max(min(reshape(slice(pairs, 3, 1, 1), rows, inner), limit), -1.0 * limit);
             auto swiglu = mul(1.0 + up, mul(gate, sigmoid(mul(alpha, gate))));
             return e.expert_bias("down_proj_bias", e.conv1d("down_proj", swiglu, hidden));
           });
  }
};

}  // namespace graft
