// SPDX-License-Identifier: Apache-2.0
// Qwen2 (Yang et al. 2024, arXiv 2407.10671) is Llama with biases on queries, keys and values.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct qwen2 : llama {
  static constexpr const char* name = "qwen2";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    auto x = m.rms_norm("input_layernorm", h);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads, bias::yes));
    auto k = m.rope(m.linear("self_attn.k_proj", x, kv, bias::yes));
    auto v = m.linear("self_attn.v_proj", x, kv, bias::yes);
    h = h + m.linear("self_attn.o_proj", m.attention(q, k, v), hidden);
    x = m.rms_norm("post_attention_layernorm", h);
    auto gate = m.linear("mlp.gate_proj", x, m.size("intermediate"));
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"));
    return h + m.linear("mlp.down_proj", mul(m.activated(gate, op::silu), up), hidden);
  }
};

}  // namespace graft
