// SPDX-License-Identifier: Apache-2.0
// Mixtral (Jiang et al. 2024, arXiv 2401.04088) is Mistral whose feed-forward layer is a mixture of experts: each row
// takes the k experts with the largest router scores (top-k routing, gating), and the softmax of these k scores weights
// what they give.
#pragma once
#include <graft/block/llama.h>

namespace graft {

// SwiGLU experts as transformers names and stores them: "NAME.gate_up_proj" [experts, 2 I, hidden], the gates first,
// and "NAME.down_proj" [experts, hidden, I].
constexpr ex gated_experts(block_scope m, const char* name, ex x, const expert_choice& by) {
  return m.experts(name, x, by, [&](block_scope e, ex rows) {
    const extent inner = e.size("moe_intermediate");
    auto both = e.linear("gate_up_proj", rows, 2 * inner);
    auto gate = slice(both, 3, 0, inner), up = slice(both, 3, inner, inner);
    return e.linear("down_proj", mul(e.activated(gate, op::silu), up), x.cols());
  });
}
// The k largest scores of the linear layer `name`, weighted by their softmax: over these k, or over all experts.
constexpr expert_choice softmax_router(block_scope m, const char* name, ex x, bool over_chosen) {
  const extent k = m.size("experts_per_token");
  auto scores = m.linear(name, x, m.size("experts"));
  return {scores, over_chosen ? topk_softmax(scores, k) : softmax(scores), k};
}

struct mixtral : llama {
  static constexpr const char* name = "mixtral";
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {});
    auto x = m.rms_norm("post_attention_layernorm", h);
    return h + gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, true));
  }
};

}  // namespace graft
