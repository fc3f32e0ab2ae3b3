// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (Yang et al. 2025, arXiv 2505.09388) is Qwen3 with experts, without a shared one; layers may be dense.
#pragma once
#include <graft/block/mixtral.h>
#include <graft/block/qwen3.h>

namespace graft {

struct qwen3_moe : llama {
  static constexpr const char* name = "qwen3_moe";
  static constexpr ex run(block_scope m, ex h) {
    h = attention_with_head_norms(m, h);
    auto x = m.rms_norm("post_attention_layernorm", h);
    if (!m.has("sparse_layer")) return h + gated_layer(m.in("mlp"), x, m.size("intermediate"));
    return h + gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, m.has("router_over_chosen")));
  }
};

}  // namespace graft
