// SPDX-License-Identifier: Apache-2.0
// The two parts that blocks of most architectures have: self-attention with RoPE, and the gated MLP (SwiGLU, GeGLU).
//     self_attention   O attention(rope(Q x), rope(K x), V x)               below "self_attn"
//     gated_layer      D (a(G x) ⊙ U x)  with an activation a               below the path of its scope
#pragma once
#include <graft/derive/block.h>

namespace graft {

struct attention_form {
  bias in = bias::no, out = bias::no;  // in: bias of q_proj, k_proj and v_proj; out: bias of o_proj
  bool norms_heads = false;            // an RMS norm on each head of queries and keys
  double plus = 0;                     // constant added to the weights of these norms
  ex sinks{};                          // block_scope::attention
};
// The biases of attention as the model's configuration says.
constexpr attention_form configured_attention(const block_scope& m) {
  return {bias{m.has("attention_bias")}, bias{m.has("output_bias")}};
}
constexpr ex self_attention(const block_scope& m, ex x, const attention_form& form) {
  const block_scope s = m.in("self_attn");
  const extent d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
  const auto rotated = [&](const char* norm, ex y) {
    return m.rope(form.norms_heads ? s.head_norm(norm, y, d, form.plus) : y);
  };
  auto q = rotated("q_norm", s.linear("q_proj", x, heads, form.in));
  auto k = rotated("k_norm", s.linear("k_proj", x, kv, form.in));
  auto v = s.linear("v_proj", x, kv, form.in);
  return s.linear("o_proj", m.attention(q, k, v, form.sinks), x.cols(), form.out);
}

constexpr ex gated_layer(const block_scope& m, ex x, extent inner, bias has_bias = bias::no, op activation = op::silu) {
  auto gate = m.linear("gate_proj", x, inner, has_bias), up = m.linear("up_proj", x, inner, has_bias);
  return m.linear("down_proj", mul(m.activated(gate, activation), up), x.cols(), has_bias);
}

}  // namespace graft
