// SPDX-License-Identifier: Apache-2.0
// Qwen2 (Yang et al. 2024, arXiv 2407.10671) is Llama with biases on queries, keys and values.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct qwen2 : llama {
  static constexpr const char* name = "qwen2";
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.in = bias::yes});
    return h + gated_layer(m.in("mlp"), m.rms_norm("post_attention_layernorm", h), m.size("intermediate"));
  }
};

}  // namespace graft
