// SPDX-License-Identifier: Apache-2.0
// The configuration of a decoder model, one record for every family, whatever its config.json calls a field.
#pragma once
#include <graft/core/dtype.h>
#include <graft/model/rope.h>

#include <optional>
#include <string>
#include <vector>

namespace graft {

enum class model_family : unsigned char { llama, mistral, qwen2, qwen3, gemma, opt, gpt2 };
inline constexpr model_family model_families[] = {model_family::llama, model_family::mistral, model_family::qwen2,
                                                  model_family::qwen3, model_family::gemma,   model_family::opt,
                                                  model_family::gpt2};

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
  model_family family = model_family::llama;
  int vocabulary = 0, hidden_size = 0, intermediate_size = 0, layers = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int positions = 0;        // longest sequence the model was trained for (max_position_embeddings)
  int embedding_width = 0;  // OPT: less than hidden_size if the model has project_in and project_out
  std::vector<int> window;  // per layer, sliding window: how many keys a token attends to, its own included; 0: all
  activation_kind activation = activation_kind::silu;
  double norm_eps = 1e-6, attention_scale = 0;
  bool attention_bias = false, output_bias = false, mlp_bias = false, tied = false;
  bool attention_scaled_by_layer = false;      // GPT-2: layer l also divides by l + 1
  bool norm_before = true, final_norm = true;  // OPT: post-norm if false; the last norm may be missing
  rope_settings rope{};                        // OPT and GPT-2 have learned positions instead
  double attention_dropout = 0, residual_dropout = 0, embedding_dropout = 0;
  special_tokens tokens{};
  std::optional<dtype> stored{};  // type of the weights as the file states it
  std::optional<quantized_weights> quantized{};
};

constexpr const char* name_of(model_family f) {
  switch (f) {
    case model_family::llama: return "llama";
    case model_family::mistral: return "mistral";
    case model_family::qwen2: return "qwen2";
    case model_family::qwen3: return "qwen3";
    case model_family::gemma: return "gemma";
    case model_family::opt: return "opt";
    case model_family::gpt2: return "gpt2";
  }
  return "?";
}
// GPT-2 stores its projections [in, out]; bitsandbytes turns them into linear layers [out, in] when it quantizes.
inline bool stored_in_out(const model_config& c) {
  return c.family == model_family::gpt2 && (!c.quantized || c.quantized->type == dtype::f8_e4m3);
}
constexpr bool has_rope(model_family f) { return f != model_family::opt && f != model_family::gpt2; }

}  // namespace graft
