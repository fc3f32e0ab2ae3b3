// SPDX-License-Identifier: Apache-2.0
// OPT (Zhang et al. 2022, arXiv 2205.01068): positions are learned and begin in the third row of their table, LayerNorm
// is in front of attention and feed-forward or after each, and the activation is ReLU. An embedding narrower than
// `hidden` has a projection at each end of the model.
#pragma once
#include <graft/derive/block.h>

namespace graft {

struct opt {
  static constexpr const char *name = "opt", *layers = "model.decoder.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    const extent hidden = m.size("hidden"), rows = m.size("context");
    auto table = m.at("model.decoder.embed_positions").leaf(op::base, "weight", 2, 1, 1, rows + 2, hidden);
    const bool projected = m.has("projected");
    auto h = m.embedding("model.decoder.embed_tokens", ids, m.size("vocab"), projected ? m.size("embedding") : hidden);
    if (projected) h = m.linear("model.decoder.project_in", h, hidden);
    return h + ex{m.g, make_node::gather(*m.g, slice(table, 2, 2, rows).i, m.positions().i, false)};
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols();
    const bool before = m.has("norm_before");
    const bias b{m.has("attention_bias")};
    auto norm = [&](const char* path, ex x) { return m.layer_norm(path, x); };
    auto x = before ? norm("self_attn_layer_norm", h) : h;
    auto q = m.linear("self_attn.q_proj", x, hidden, b), k = m.linear("self_attn.k_proj", x, hidden, b);
    auto v = m.linear("self_attn.v_proj", x, hidden, b);
    h = h + m.dropout("self_attn", m.linear("self_attn.out_proj", m.attention(q, k, v), hidden, b));
    if (!before) h = norm("self_attn_layer_norm", h);
    x = before ? norm("final_layer_norm", h) : h;
    x = m.activated(m.linear("fc1", x, m.size("intermediate"), b), op::relu);
    h = h + m.dropout("fc2", m.linear("fc2", x, hidden, b));
    return before ? h : norm("final_layer_norm", h);
  }
  static constexpr ex head(block_scope m, ex h) {
    if (m.has("final_norm")) h = m.layer_norm("model.decoder.final_layer_norm", h);
    if (m.has("projected")) h = m.linear("model.decoder.project_out", h, m.size("embedding"));
    return m.linear("lm_head", h, m.size("vocab"));
  }
};

}  // namespace graft
