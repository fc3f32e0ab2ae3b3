// SPDX-License-Identifier: Apache-2.0
// A Llama or Mixtral of any shape with random weights in bf16, small enough that activations stay of order one.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/core/splitmix64.h>
#include <graft/model/block_stack.h>

#include <algorithm>
#include <cmath>
#include <deque>

namespace graft::test {

inline model_config llama_config(int layers, int width, int inner, int vocabulary, int positions) {
  model_config c;
  c.vocabulary = vocabulary, c.hidden_size = width, c.intermediate_size = inner, c.layers = layers;
  c.head_dim = 128, c.heads = width / c.head_dim, c.kv_heads = c.heads / 4, c.positions = positions;
  c.window.assign(static_cast<std::size_t>(layers), 0);
  c.norm_eps = 1e-5, c.embedding_width = width, c.attention_scale = 1 / std::sqrt(128.0), c.rope.theta = 500000;
  return c;
}
inline model_config mixtral_config(int layers, int width, int inner, int experts, int per_token, int vocabulary,
                                   int positions) {
  model_config c = llama_config(layers, width, inner, vocabulary, positions);
  c.family = &families::mixtral, c.experts = experts, c.experts_per_token = per_token;
  c.expert_intermediate_size = inner;
  return c;
}
struct random_memory {
  std::deque<std::vector<std::uint16_t>> numbers;
  std::vector<float> scales;
  std::deque<quant_state> quant;
};
// With `quantized`, the projections of a Llama are quantized to NF4.
inline model_weights random_weights(const model_config& c, bool quantized = false) {
  model_weights w;
  auto memory = std::make_shared<random_memory>();
  const quant_format nf4{dtype::nf4, scale_granularity::flat_block, 64};
  if (quantized)
    memory->scales.assign(static_cast<std::size_t>(c.intermediate_size) * static_cast<std::size_t>(c.hidden_size) / 64,
                          0.02F);
  std::uint64_t drawn = 0;
  const auto put = [&](const std::string& name, long long rows, long long cols) {
    auto& v = memory->numbers.emplace_back(static_cast<std::size_t>(rows * cols));
    const bool norm = cols == 1;
    // A period of random numbers is repeated, because the values do not matter to a test of speed or memory.
    const std::size_t period = std::min<std::size_t>(v.size(), 1U << 22U);
    for (std::size_t i = 0; i < period; ++i) {
      const std::uint64_t bits = norm ? 0 : splitmix64(drawn++);
      v[i] = norm ? 0x3f80 : static_cast<std::uint16_t>((bits & 0x8000U) | 0x3c00U | (bits >> 20U & 0x7fU));
    }
    for (std::size_t i = period; i < v.size(); i += period)
      std::copy_n(v.begin(), std::min(period, v.size() - i), v.begin() + static_cast<std::ptrdiff_t>(i));
    w.tensors[name] = {v.data(), dtype::bf16, {rows, cols, 1, 1}, norm ? 1 : 2};
  };
  // The random bits of the plain weights serve as NF4 values.
  const auto project = [&](const std::string& name, long long rows, long long cols) {
    put(name, quantized ? rows / 4 : rows, cols);
    if (!quantized) return;
    quant_state& p = memory->quant.emplace_back();
    p.format = nf4, p.scales = memory->scales.data();
    view& v = w.tensors[name];
    v.type = dtype::nf4, v.size[0] = rows, v.quant = &p;
  };
  const auto put_experts = [&](const std::string& name, long long rows, long long cols) {
    put(name, c.experts * rows, cols);
    view& v = w.tensors[name];
    v.size[0] = c.experts, v.size[1] = rows, v.size[2] = cols, v.rank = 3;
  };
  const long long kv = static_cast<long long>(c.kv_heads) * c.head_dim;
  put("model.embed_tokens.weight", c.vocabulary, c.hidden_size), put("lm_head.weight", c.vocabulary, c.hidden_size);
  put("model.norm.weight", c.hidden_size, 1);
  for (int l = 0; l < c.layers; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    put(at + "input_layernorm.weight", c.hidden_size, 1), put(at + "post_attention_layernorm.weight", c.hidden_size, 1);
    project(at + "self_attn.q_proj.weight", c.hidden_size, c.hidden_size),
        project(at + "self_attn.o_proj.weight", c.hidden_size, c.hidden_size);
    project(at + "self_attn.k_proj.weight", kv, c.hidden_size),
        project(at + "self_attn.v_proj.weight", kv, c.hidden_size);
    if (c.experts > 0) {
      put(at + "mlp.gate.weight", c.experts, c.hidden_size);
      put_experts(at + "mlp.experts.gate_up_proj", 2LL * c.expert_intermediate_size, c.hidden_size);
      put_experts(at + "mlp.experts.down_proj", c.hidden_size, c.expert_intermediate_size);
      continue;
    }
    project(at + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size),
        project(at + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size);
    project(at + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size);
  }
  w.owner = memory;
  return w;
}

}  // namespace graft::test
