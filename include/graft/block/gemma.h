// SPDX-License-Identifier: Apache-2.0
// Gemma (Mesnard et al. 2024, arXiv 2403.08295): the embedding is scaled by √hidden, RMS norms store w - 1, and the
// feed-forward layer is GeGLU with the tanh form of GELU.
#pragma once
#include <graft/block/layers.h>

namespace graft {

struct gemma {
  static constexpr const char *name = "gemma", *layers = "model.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    auto h = m.embedding("model.embed_tokens", ids, m.size("vocab"), m.size("hidden"));
    return sqrt(m.root().number(h.cols())) * h;
  }
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h, 1), configured_attention(m));
    auto x = m.rms_norm("post_attention_layernorm", h, 1);
    return h + gated_layer(m.in("mlp"), x, m.size("intermediate"), bias::no, op::gelu_tanh);
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.rms_norm("model.norm", h, 1), m.size("vocab"));
  }
};

}  // namespace graft
