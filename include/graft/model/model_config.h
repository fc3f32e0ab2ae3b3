// SPDX-License-Identifier: Apache-2.0
// The configuration of a decoder model, one record for every family (model/families.h), whatever its config.json calls
// a field.
#pragma once
#include <graft/core/dtype.h>
#include <graft/model/families.h>
#include <graft/model/rope.h>

#include <optional>
#include <string>
#include <vector>

namespace graft {

enum class activation_kind : unsigned char { silu, gelu, gelu_tanh, relu };

struct special_tokens {
  std::optional<int> bos_token, pad_token;
  std::vector<int> eos_tokens;
};

// In which tensors a file stores quantized weights: the library or format that quant_method names.
enum class quantized_storage : unsigned char { bitsandbytes, fp8, gptq, awq, mxfp4, nvfp4, gguf };
// The quantization of a model's weights as its configuration states it, and the modules that are not quantized.
struct quantized_weights {
  dtype type = dtype::nf4;
  std::vector<std::string> unquantized_modules{};
  quantized_storage stored_as = quantized_storage::bitsandbytes;
  int group_size = 0;           // GPTQ and AWQ: columns that share a scale; -1: all of a row
  bool act_order = false;       // GPTQ: columns are in groups in any order (desc_act)
  bool zeros_less_one = false;  // GPTQ: zero points are stored less one (checkpoint_format gptq)
};

struct model_config {
  const model_family* family = &families::llama;
  int vocabulary = 0, hidden_size = 0, intermediate_size = 0, layers = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int positions = 0;        // longest sequence the model was trained for (max_position_embeddings)
  int embedding_width = 0;  // OPT: less than hidden_size if the model has project_in and project_out
  // Mixture of experts; 0 experts: none. `sparse` says per layer whether it has experts; empty: all layers have.
  int experts = 0, experts_per_token = 0, expert_intermediate_size = 0, shared_expert_intermediate_size = 0;
  bool router_over_chosen = true;  // the router's softmax is over the chosen experts
  std::vector<bool> sparse{};
  double router_loss = 0;  // factor of the auxiliary loss of routers in the loss; 0: there is none
  double swiglu_alpha = 1.702, swiglu_limit = 7;  // alpha and clamp of the expert SwiGLU of gpt-oss
  std::vector<int> window;                        // sliding window of each layer in keys, the own one included; 0: none
  activation_kind activation = activation_kind::silu;
  double norm_eps = 1e-6, attention_scale = 0;
  bool attention_bias = false, output_bias = false, mlp_bias = false, tied = false;
  bool attention_scaled_by_layer = false;             // GPT-2: layer l also divides by l + 1
  bool norm_before = true, final_norm = true;         // OPT: post-norm if false; the last norm may be missing
  double attention_soft_cap = 0, logit_soft_cap = 0;  // c tanh(x / c) of scores and of logits; 0: none
  double embedding_multiplier = 1, residual_multiplier = 1, logits_scaling = 1;  // Granite; logits are divided
  rope_settings rope{};                         // OPT and GPT-2 have learned positions instead
  std::optional<rope_settings> sliding_rope{};  // RoPE of sliding-window layers, if it differs
  std::vector<bool> no_rope{};                  // per layer; empty: all layers have RoPE
  double attention_dropout = 0, residual_dropout = 0, embedding_dropout = 0;
  special_tokens tokens{};
  std::optional<dtype> stored{};  // type of the weights as the file states it
  std::optional<quantized_weights> quantized{};
};

// Projections that are stored [in, out] become linear layers [out, in] when bitsandbytes quantizes them.
inline bool stored_in_out(const model_config& c) {
  return c.family->stores_in_out && (!c.quantized || c.quantized->type == dtype::f8_e4m3);
}
inline bool stored_out_in(const model_config& c) { return c.family->stores_in_out && !stored_in_out(c); }
// transformers stores MXFP4 experts [experts, out, in] in blocks, as GGUF files store all weights, and all other experts
// as the family has them.
inline bool experts_in_out(const model_config& c) {
  return c.family->experts_in_out && !(c.quantized && (c.quantized->stored_as == quantized_storage::mxfp4 ||
                                                       c.quantized->stored_as == quantized_storage::gguf));
}
// The number n of elements of each head that RoPE's frequencies theta^(-2i/n) are made for, and how many are rotated,
// which are whole pairs (transformers' arange(0, n, 2)).
inline int rope_dim(const model_config& c) { return static_cast<int>(c.head_dim * c.rope.partial); }
inline int rotary_dim(const model_config& c) { return (rope_dim(c) + 1) / 2 * 2; }
// Returns true if a tensor or module belongs to a block.
inline bool is_in_layers(const model_config& c, std::string_view name) {
  const std::string_view layers = c.family->formulas.layers;
  return name.size() > layers.size() && name.starts_with(layers) && name[layers.size()] == '.';
}

inline status check_opt(const model_config& c) {
  return c.attention_bias == c.mlp_bias ? ok : status(fail("OPT has all biases or none"));
}

}  // namespace graft
