// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al. 2023, arXiv 2302.13971), and Mistral, whose sliding window is in the attention ranges of a
// call: RoPE, RMSNorm, SwiGLU. Q, K, V, O are the projections of attention, G, U, D gate, up and down.
//     h = h + O attention(rope(Q x), rope(K x), V x),  x = norm(h)          h = h + D (silu(G x) ⊙ U x),  x = norm(h)
#pragma once
#include <graft/block/layers.h>

namespace graft {

struct llama {
  static constexpr const char *name = "llama", *layers = "model.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    return m.embedding("model.embed_tokens", ids, m.size("vocab"), m.size("hidden"));
  }
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), configured_attention(m));
    auto x = m.rms_norm("post_attention_layernorm", h);
    return h + gated_layer(m.in("mlp"), x, m.size("intermediate"), bias{m.has("mlp_bias")});
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.rms_norm("model.norm", h), m.size("vocab"));
  }
};

struct mistral : llama {
  static constexpr const char* name = "mistral";
};

}  // namespace graft
