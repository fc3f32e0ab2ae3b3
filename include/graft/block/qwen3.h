// SPDX-License-Identifier: Apache-2.0
// Qwen3 (Yang et al. 2025, arXiv 2505.09388) is Llama with an RMS norm on each head of queries and keys.
#pragma once
#include <graft/block/llama.h>

namespace graft {

// The residual attention sub-block h + O attention(…) of dense and mixture-of-experts Qwen3.
constexpr ex attention_with_head_norms(block_scope m, ex h) {
  attention_form form = configured_attention(m);
  form.norms_heads = true;
  return h + self_attention(m, m.rms_norm("input_layernorm", h), form);
}

struct qwen3 : llama {
  static constexpr const char* name = "qwen3";
  static constexpr ex run(block_scope m, ex h) {
    h = attention_with_head_norms(m, h);
    return h + gated_layer(m.in("mlp"), m.rms_norm("post_attention_layernorm", h), m.size("intermediate"));
  }
};

}  // namespace graft
