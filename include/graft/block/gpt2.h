// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al. 2019): positions are learned, LayerNorm is in front of attention and of the feed-forward layer,
// one layer makes queries, keys and values, and weights are stored [in, out].
#pragma once
#include <graft/derive/block.h>

namespace graft {

struct gpt2 {
  static constexpr const char *name = "gpt2", *layers = "transformer.h";
  static constexpr ex embed(block_scope m, ex ids) {
    auto h = m.embedding("transformer.wte", ids, m.size("vocab"), m.size("hidden"));
    auto position = m.embedding("transformer.wpe", m.positions(), m.size("context"), m.size("hidden"));
    return m.dropout("transformer.drop", h + position);
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols();
    auto x = m.layer_norm("ln_1", h);
    auto qkv = m.conv1d("attn.c_attn", x, 3 * hidden);
    h = h + m.dropout("attn.resid_dropout", m.conv1d("attn.c_proj", m.attention(qkv, hidden), hidden));
    x = m.layer_norm("ln_2", h);
    x = m.activated(m.conv1d("mlp.c_fc", x, m.size("intermediate")), op::gelu_tanh);
    return h + m.dropout("mlp.dropout", m.conv1d("mlp.c_proj", x, hidden));
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.layer_norm("transformer.ln_f", h), m.size("vocab"));
  }
};

}  // namespace graft
