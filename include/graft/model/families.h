// SPDX-License-Identifier: Apache-2.0
// From a model's numbers to the formulas of its family: which architecture, which of its choices hold, and the sizes and
// numbers that the graphs know by name.
#pragma once
#include <graft/block/gemma.h>
#include <graft/block/gpt2.h>
#include <graft/block/opt.h>
#include <graft/block/qwen2.h>
#include <graft/block/qwen3.h>
#include <graft/core/result.h>
#include <graft/model/config.h>
#include <graft/run/named.h>

namespace graft {

inline architecture architecture_for(model_family f) {
  switch (f) {
    case model_family::llama: return architecture_of<llama>();
    case model_family::mistral: return architecture_of<mistral>();
    case model_family::qwen2: return architecture_of<qwen2>();
    case model_family::qwen3: return architecture_of<qwen3>();
    case model_family::gemma: return architecture_of<gemma>();
    case model_family::opt: return architecture_of<opt>();
    case model_family::gpt2: return architecture_of<gpt2>();
  }
  return {};
}

inline std::vector<const char*> facts_of(const model_config& c) {
  std::vector<const char*> facts;
  for (const auto& [holds, name] : {std::pair{c.attention_bias, "attention_bias"},
                                    {c.output_bias, "output_bias"},
                                    {c.mlp_bias, "mlp_bias"},
                                    {c.norm_before, "norm_before"},
                                    {c.final_norm, "final_norm"}})
    if (holds) facts.push_back(name);
  return facts;
}

constexpr op operation_of(activation_kind a) {
  switch (a) {
    case activation_kind::silu: return op::silu;
    case activation_kind::gelu: return op::gelu;
    case activation_kind::gelu_tanh: return op::gelu_tanh;
    case activation_kind::relu: return op::relu;
  }
  return op::detach;
}

// The first layer's embedding, whose table is also the last one's where embeddings are tied.
constexpr const char* token_table(model_family f) {
  if (f == model_family::gpt2) return "transformer.wte.weight";
  return f == model_family::opt ? "model.decoder.embed_tokens.weight" : "model.embed_tokens.weight";
}

// What the formulas of this family cannot say yet.
inline status check_supported(const model_config& c) {
  if (c.embedding_width != c.width)
    return fail("'word_embed_proj_dim' ", c.embedding_width, " is not 'hidden_size' ", c.width,
                ": projections of the embeddings are not supported");
  if (c.attention_scale != 1 / std::sqrt(static_cast<double>(c.head_size)))
    return fail("'scale_attn_weights' is false, which is not supported");
  if (c.family == model_family::opt && c.attention_bias != c.mlp_bias) return fail("OPT has all biases or none");
  return ok;
}

// Sizes and numbers of every graph of the model; `context`: rows of the tables of positions.
inline named_values values_of(const model_config& c, int context) {
  named_values v;
  v.sizes = {{"hidden", c.width},       {"heads", c.heads},      {"kv_heads", c.key_heads}, {"head_dim", c.head_size},
             {"intermediate", c.inner}, {"vocab", c.vocabulary}, {"context", context}};
  v.scalars = {{"eps", c.norm_eps}};
  return v;
}

// Row p: the cosines of position p for each pair of a head, then its sines.
inline std::vector<float> rotary_table(const model_config& c, int context) {
  const rope_numbers r = rope_for(c.rope, c.head_size);
  const std::size_t half = r.frequencies.size();
  std::vector<float> table(static_cast<std::size_t>(context) * half * 2);
  for (std::size_t p = 0; p < static_cast<std::size_t>(context); ++p)
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * r.frequencies[i];
      table[p * half * 2 + i] = std::cos(angle) * r.factor;
      table[p * half * 2 + half + i] = std::sin(angle) * r.factor;
    }
  return table;
}

}  // namespace graft
