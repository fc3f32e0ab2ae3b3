// SPDX-License-Identifier: Apache-2.0
// Gemma 3 (Kamath et al. 2025, arXiv 2503.19786), its text model, is Gemma 2 with an RMS norm on each head of queries
// and keys instead of the soft cap on scores. Layers with a sliding window have angles of their own.
#pragma once
#include <graft/block/gemma2.h>

namespace graft {

struct gemma3 : gemma2 {
  static constexpr const char* name = "gemma3_text";
  static constexpr ex run(block_scope m, ex h) {
    attention_form form = configured_attention(m);
    form.norms_heads = true, form.plus = 1;
    auto attended = self_attention(m, m.rms_norm("input_layernorm", h, 1), form);
    return feed_forward(m, h + m.rms_norm("post_attention_layernorm", attended, 1));
  }
};

}  // namespace graft
