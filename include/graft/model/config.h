// SPDX-License-Identifier: Apache-2.0
// What a decoder computes, as numbers: the same record for every family of models, whatever its file calls a field.
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
  std::optional<int> begin, pad;
  std::vector<int> end;
};

// Which codes the weights of a model are, as its configuration says, and the modules that are left as they were.
struct coded_weights {
  dtype codes = dtype::nf4;
  std::vector<std::string> plain_modules;
};

struct model_config {
  model_family family = model_family::llama;
  int vocabulary = 0, width = 0, inner = 0, layers = 0;
  int heads = 0, key_heads = 0, head_size = 0;
  int positions = 0;        // the longest sequence the model was made for
  int embedding_width = 0;  // OPT: narrower than width where project_in and project_out stand between
  std::vector<int> window;  // per layer: how many positions back a token sees, itself included; 0: all
  activation_kind activation = activation_kind::silu;
  double norm_eps = 1e-6, attention_scale = 0;
  bool attention_bias = false, output_bias = false, mlp_bias = false, tied = false;
  bool attention_scaled_by_layer = false;      // GPT-2: layer l divides by l + 1 too
  bool norm_before = true, final_norm = true;  // OPT: norms may stand behind the residual, the last one may be missing
  rope_settings rope{};                        // OPT and GPT-2 have learned positions instead
  double attention_dropout = 0, residual_dropout = 0, embedding_dropout = 0;
  special_tokens tokens{};
  std::optional<dtype> stored{};  // as the file says its weights are
  std::optional<coded_weights> coded{};
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
// GPT-2 stores its projections [in, out]; bitsandbytes makes linear layers of them, [out, in], when it writes codes.
inline bool stored_in_out(const model_config& c) {
  return c.family == model_family::gpt2 && (!c.coded || c.coded->codes == dtype::f8_e4m3);
}
constexpr bool has_rope(model_family f) { return f != model_family::opt && f != model_family::gpt2; }

}  // namespace graft
