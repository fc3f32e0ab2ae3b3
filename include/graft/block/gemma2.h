// SPDX-License-Identifier: Apache-2.0
// Gemma 2 (Riviere et al. 2024, arXiv 2408.00118) is Gemma with norms after attention and after the feed-forward layer
// too, and soft caps: scores of attention and logits x become c tanh(x / c). Every second layer has a sliding window.
#pragma once
#include <graft/block/gemma.h>

namespace graft {

struct gemma2 : gemma {
  static constexpr const char* name = "gemma2";
  static constexpr ex run(block_scope m, ex h) {
    auto attended = self_attention(m, m.rms_norm("input_layernorm", h, 1), configured_attention(m));
    return feed_forward(m, h + m.rms_norm("post_attention_layernorm", attended, 1));
  }
  static constexpr ex head(block_scope m, ex h) { return m.soft_capped(gemma::head(m, h), "logit_soft_cap"); }

 protected:
  static constexpr ex feed_forward(block_scope m, ex h) {
    auto x = m.rms_norm("pre_feedforward_layernorm", h, 1);
    auto down = gated_layer(m.in("mlp"), x, m.size("intermediate"), bias::no, op::gelu_tanh);
    return h + m.rms_norm("post_feedforward_layernorm", down, 1);
  }
};

}  // namespace graft
