// SPDX-License-Identifier: Apache-2.0
// A Llama of any shape with random weights in bf16, small enough that rows stay of order one.
#pragma once
#include <graft/core/mixed_bits.h>
#include <graft/model/block_stack.h>

#include <cmath>
#include <deque>

namespace graft::test {

inline model_config llama_config(int layers, int width, int inner, int vocabulary, int positions) {
  model_config c;
  c.vocabulary = vocabulary, c.width = width, c.inner = inner, c.layers = layers;
  c.head_size = 128, c.heads = width / c.head_size, c.key_heads = c.heads / 4, c.positions = positions;
  c.window.assign(static_cast<std::size_t>(layers), 0);
  c.norm_eps = 1e-5, c.embedding_width = width, c.attention_scale = 1 / std::sqrt(128.0), c.rope.theta = 500000;
  return c;
}
inline model_weights random_weights(const model_config& c) {
  model_weights w;
  auto memory = std::make_shared<std::deque<std::vector<std::uint16_t>>>();
  std::uint64_t drawn = 0;
  const auto put = [&](const std::string& name, long long rows, long long cols) {
    const bool norm = cols == 1;
    auto& v = memory->emplace_back(static_cast<std::size_t>(rows * cols), std::uint16_t{0x3f80});
    for (std::size_t i = 0; !norm && i < v.size(); ++i) {
      const std::uint64_t bits = mixed_bits(drawn++);
      v[i] = static_cast<std::uint16_t>((bits & 0x8000U) | 0x3c00U | (bits >> 20U & 0x7fU));
    }
    w.tensors[name] = {v.data(), dtype::bf16, {rows, cols, 1, 1}, norm ? 1 : 2};
  };
  const long long kv = static_cast<long long>(c.key_heads) * c.head_size;
  put("model.embed_tokens.weight", c.vocabulary, c.width), put("lm_head.weight", c.vocabulary, c.width);
  put("model.norm.weight", c.width, 1);
  for (int l = 0; l < c.layers; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    put(at + "input_layernorm.weight", c.width, 1), put(at + "post_attention_layernorm.weight", c.width, 1);
    put(at + "self_attn.q_proj.weight", c.width, c.width), put(at + "self_attn.o_proj.weight", c.width, c.width);
    put(at + "self_attn.k_proj.weight", kv, c.width), put(at + "self_attn.v_proj.weight", kv, c.width);
    put(at + "mlp.gate_proj.weight", c.inner, c.width), put(at + "mlp.up_proj.weight", c.inner, c.width);
    put(at + "mlp.down_proj.weight", c.width, c.inner);
  }
  w.owner = memory;
  return w;
}

}  // namespace graft::test
