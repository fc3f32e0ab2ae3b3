// SPDX-License-Identifier: Apache-2.0
// Names of tensors in GGUF files (gguf-py/gguf/tensor_mapping.py) as names of Hugging Face files, for the families that
// are named as Llama is and for GPT-2.
#pragma once
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

// Maps a name in a GGUF file to the one in a Hugging Face file; empty if there is none.
inline std::string name_in_folder(model_family family, std::string_view name) {
  const bool gpt2 = family == model_family::gpt2;
  const auto ends = gpt2 ? std::span<const name_pair>(gguf_gpt2_ends) : std::span<const name_pair>(gguf_llama_ends);
  const auto modules =
      gpt2 ? std::span<const name_pair>(gguf_gpt2_modules) : std::span<const name_pair>(gguf_llama_modules);
  for (const auto& [from, to] : ends)
    if (name == from) return std::string(to);
  const std::size_t layer = name.find('.'), module = layer == name.npos ? layer : name.find('.', layer + 1),
                    kind = name.rfind('.');
  if (module == name.npos || kind <= module || name.substr(0, layer) != "blk") return {};
  for (const auto& [from, to] : modules)
    if (name.substr(module + 1, kind - module - 1) == from)
      return std::string(gpt2 ? "transformer.h." : "model.layers.") +
             std::string(name.substr(layer + 1, module - layer - 1)) + "." + std::string(to) +
             std::string(name.substr(kind));
  return {};
}

}  // namespace graft::io::detail
