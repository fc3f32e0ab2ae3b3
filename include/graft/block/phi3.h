// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4 (Abdin et al. 2024, arXiv 2404.14219) are Llama with one layer for queries, keys and values and one
// for gate and up, and dropout of what a block adds. RoPE may rotate only the first elements of each head.
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct phi3 : llama {
  static constexpr const char* name = "phi3";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d,
                 inner = m.size("intermediate");
    auto qkv = m.linear("self_attn.qkv_proj", m.rms_norm("input_layernorm", h), heads + 2 * kv);
    auto q = m.rope(slice(qkv, 3, 0, heads)), k = m.rope(slice(qkv, 3, heads, kv));
    auto v = slice(qkv, 3, heads + kv, kv);
    h = h + m.dropout("resid_attn_dropout", m.linear("self_attn.o_proj", m.attention(q, k, v), hidden));
    auto gate_up = m.linear("mlp.gate_up_proj", m.rms_norm("post_attention_layernorm", h), 2 * inner);
    auto gate = slice(gate_up, 3, 0, inner), up = slice(gate_up, 3, inner, inner);
    auto down = m.linear("mlp.down_proj", mul(m.activated(gate, op::silu), up), hidden);
    return h + m.dropout("resid_mlp_dropout", down);
  }
};

}  // namespace graft
