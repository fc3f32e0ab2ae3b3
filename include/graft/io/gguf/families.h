// SPDX-License-Identifier: Apache-2.0
// How GGUF files state each family: one row per general.architecture, with the names of tensors
// (gguf-py/gguf/tensor_mapping.py) as names of Hugging Face files, what converters change in them, and the keys that
// other architectures do not have.
#pragma once
#include <graft/io/gguf/metadata.h>
#include <graft/model/model_config.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace graft::io::detail {

using name_pair = std::pair<std::string_view, std::string_view>;

inline constexpr name_pair gguf_llama_ends[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                                {"output_norm.weight", "model.norm.weight"},
                                                {"output.weight", "lm_head.weight"}};
inline constexpr name_pair gguf_llama_modules[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};
inline constexpr name_pair gguf_gpt2_ends[] = {{"token_embd.weight", "transformer.wte.weight"},
                                               {"position_embd.weight", "transformer.wpe.weight"},
                                               {"output_norm.weight", "transformer.ln_f.weight"},
                                               {"output_norm.bias", "transformer.ln_f.bias"},
                                               {"output.weight", "lm_head.weight"}};
inline constexpr name_pair gguf_gpt2_modules[] = {{"attn_norm", "ln_1"},          {"attn_qkv", "attn.c_attn"},
                                                  {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
                                                  {"ffn_up", "mlp.c_fc"},         {"ffn_down", "mlp.c_proj"}};

struct gguf_family {
  const model_family* family = nullptr;
  const char* name = "";  // general.architecture
  std::span<const name_pair> ends = gguf_llama_ends, modules = gguf_llama_modules;
  bool interleaves_heads = false;  // rows of Q and K are permuted so that RoPE rotates neighboring pairs
  bool adds_one_to_norms = false;
  bool has_layer_norms = false;  // with biases, as all projections then have
  bool has_qkv_bias = false;
  std::span<const std::string_view> keys{};  // that only this architecture has, and read() reads
  void (*read)(gguf_metadata&, model_config&) = nullptr;
};

inline constexpr gguf_family gguf_families[] = {
    {.family = &families::llama, .name = "llama", .interleaves_heads = true},  // Mistral too
    {.family = &families::qwen2, .name = "qwen2", .has_qkv_bias = true},
    {.family = &families::qwen3, .name = "qwen3"},
    {.family = &families::gemma, .name = "gemma", .adds_one_to_norms = true},
    {.family = &families::gpt2,
     .name = "gpt2",
     .ends = gguf_gpt2_ends,
     .modules = gguf_gpt2_modules,
     .has_layer_norms = true,
     .has_qkv_bias = true},
};

// Returns the row by which a model of this family is read; null if there is none.
inline const gguf_family* gguf_family_of(const model_family& family) {
  for (const gguf_family& f : gguf_families)
    if (f.family == &family) return &f;
  return nullptr;
}

// Maps a name in a GGUF file to the one in a Hugging Face file; empty if there is none.
inline std::string name_in_folder(const gguf_family& f, std::string_view name) {
  for (const auto& [from, to] : f.ends)
    if (name == from) return std::string(to);
  const std::size_t layer = name.find('.'), module = layer == name.npos ? layer : name.find('.', layer + 1),
                    kind = name.rfind('.');
  if (module == name.npos || kind <= module || name.substr(0, layer) != "blk") return {};
  for (const auto& [from, to] : f.modules)
    if (name.substr(module + 1, kind - module - 1) == from) {
      std::string path = f.family->formulas.layers;
      path += name.substr(layer, module - layer);
      path += '.';
      path += to;
      return path += name.substr(kind);
    }
  return {};
}

}  // namespace graft::io::detail
