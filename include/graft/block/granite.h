// SPDX-License-Identifier: Apache-2.0
// Granite (IBM 2024) is Llama with numbers of the configuration as factors: of the embedding, of what a block adds, of
// the scores of attention (its attention_factor), and 1 / logits_scaling of the logits.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct granite : llama {
  static constexpr const char* name = "granite";
  static constexpr ex embed(block_scope m, ex ids) {
    return m.root().scalar("embedding_multiplier") * llama::embed(m, ids);
  }
  static constexpr ex run(block_scope m, ex h) {
    auto by = m.root().scalar("residual_multiplier");
    h = h + by * self_attention(m, m.rms_norm("input_layernorm", h), configured_attention(m));
    auto x = m.rms_norm("post_attention_layernorm", h);
    return h + by * gated_layer(m.in("mlp"), x, m.size("intermediate"), bias{m.has("mlp_bias")});
  }
  static constexpr ex head(block_scope m, ex h) { return llama::head(m, h) / m.root().scalar("logits_scaling"); }
};

}  // namespace graft
