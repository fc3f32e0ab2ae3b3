// SPDX-License-Identifier: Apache-2.0
// How GGUF files state each family: one row per general.architecture, with the names of tensors
// (gguf-py/gguf/tensor_mapping.py) as names of Hugging Face files, what converters change in them, and the keys that
// other architectures do not have.
#pragma once
#include <graft/io/gguf/metadata.h>
#include <graft/io/gguf/writer.h>
#include <graft/model/model_config.h>

#include <cmath>
#include <cstring>
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
inline constexpr name_pair gguf_moe_modules[] = {{"attn_norm", "input_layernorm"},
                                                 {"attn_q", "self_attn.q_proj"},
                                                 {"attn_k", "self_attn.k_proj"},
                                                 {"attn_v", "self_attn.v_proj"},
                                                 {"attn_output", "self_attn.o_proj"},
                                                 {"attn_q_norm", "self_attn.q_norm"},
                                                 {"attn_k_norm", "self_attn.k_norm"},
                                                 {"ffn_norm", "post_attention_layernorm"},
                                                 {"ffn_gate_inp", "mlp.gate"},
                                                 {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                                 {"ffn_up_exps", "mlp.experts.up_proj"},
                                                 {"ffn_down_exps", "mlp.experts.down_proj"},
                                                 {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                                 {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                                 {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                                 {"ffn_down_shexp", "mlp.shared_expert.down_proj"}};
inline constexpr name_pair gguf_gpt_oss_modules[] = {{"attn_norm", "input_layernorm"},
                                                     {"attn_q", "self_attn.q_proj"},
                                                     {"attn_k", "self_attn.k_proj"},
                                                     {"attn_v", "self_attn.v_proj"},
                                                     {"attn_output", "self_attn.o_proj"},
                                                     {"attn_sinks", "self_attn.sinks"},
                                                     {"post_attention_norm", "post_attention_layernorm"},
                                                     {"ffn_gate_inp", "mlp.router"},
                                                     {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                                     {"ffn_up_exps", "mlp.experts.up_proj"},
                                                     {"ffn_down_exps", "mlp.experts.down_proj"}};
inline constexpr name_pair gguf_gpt2_ends[] = {{"token_embd.weight", "transformer.wte.weight"},
                                               {"position_embd.weight", "transformer.wpe.weight"},
                                               {"output_norm.weight", "transformer.ln_f.weight"},
                                               {"output_norm.bias", "transformer.ln_f.bias"},
                                               {"output.weight", "lm_head.weight"}};
inline constexpr name_pair gguf_gpt2_modules[] = {{"attn_norm", "ln_1"},          {"attn_qkv", "attn.c_attn"},
                                                  {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
                                                  {"ffn_up", "mlp.c_fc"},         {"ffn_down", "mlp.c_proj"}};

inline constexpr name_pair gguf_post_norm_modules[] = {{"attn_norm", "input_layernorm"},
                                                       {"attn_q", "self_attn.q_proj"},
                                                       {"attn_k", "self_attn.k_proj"},
                                                       {"attn_v", "self_attn.v_proj"},
                                                       {"attn_output", "self_attn.o_proj"},
                                                       {"attn_q_norm", "self_attn.q_norm"},
                                                       {"attn_k_norm", "self_attn.k_norm"},
                                                       {"post_attention_norm", "post_attention_layernorm"},
                                                       {"ffn_norm", "pre_feedforward_layernorm"},
                                                       {"ffn_gate", "mlp.gate_proj"},
                                                       {"ffn_up", "mlp.up_proj"},
                                                       {"ffn_down", "mlp.down_proj"},
                                                       {"post_ffw_norm", "post_feedforward_layernorm"}};
inline constexpr name_pair gguf_phi3_modules[] = {
    {"attn_norm", "input_layernorm"},         {"attn_qkv", "self_attn.qkv_proj"}, {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"}, {"ffn_up", "mlp.gate_up_proj"},     {"ffn_down", "mlp.down_proj"}};

// ---- What only one architecture has (llama.cpp, src/models/NAME.cpp)

// A gguf_family reads and writes the keys below its architecture's name that no other one has.
struct gguf_keys_writer {
  gguf_writer& to;
  std::string prefix{};  // "llama."

  void whole(const char* key, int v) const { to.put(prefix + key, static_cast<std::uint32_t>(v)); }
  void real(const char* key, double v) const { to.put(prefix + key, static_cast<float>(v)); }
};

// llama.cpp knows the scale of attention by the number of layers: that of the largest model is the width over the heads
// instead of the size of a head.
inline constexpr std::string_view gguf_gemma_keys[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                                       "rope.freq_base_swa"};
inline void read_gguf_gemma(gguf_metadata& f, model_config& c, int largest) {
  const int width_per_head = c.hidden_size / c.heads;
  if (c.layers == largest) c.attention_scale = 1 / std::sqrt(static_cast<double>(width_per_head));
  f.real("final_logit_softcapping", c.logit_soft_cap);
}
inline void read_gguf_gemma2(gguf_metadata& f, model_config& c) {
  read_gguf_gemma(f, c, 46);
  f.real("attn_logit_softcapping", c.attention_soft_cap);
  f.must_be("rope.freq_base_swa", c.rope.theta, "all layers have the same angles");
}
inline void read_gguf_gemma3(gguf_metadata& f, model_config& c) {
  read_gguf_gemma(f, c, 62);
  if (f.find("attn_logit_softcapping") != nullptr)
    f.reject_key("attn_logit_softcapping", "set, which has no meaning here");
  f.real("rope.freq_base_swa", c.sliding_rope->theta);
}
inline void write_gguf_gemma(const gguf_keys_writer& to, const model_config& c) {
  if (c.attention_soft_cap > 0) to.real("attn_logit_softcapping", c.attention_soft_cap);
  if (c.logit_soft_cap > 0) to.real("final_logit_softcapping", c.logit_soft_cap);
}
inline void write_gguf_gemma3(const gguf_keys_writer& to, const model_config& c) {
  write_gguf_gemma(to, c);
  if (c.sliding_rope) to.real("rope.freq_base_swa", c.sliding_rope->theta);
}
inline constexpr std::string_view gguf_granite_keys[] = {"embedding_scale", "residual_scale", "logit_scale"};
inline void read_gguf_granite(gguf_metadata& f, model_config& c) {
  f.real("logit_scale", c.logits_scaling, true);
  f.real("embedding_scale", c.embedding_multiplier), f.real("residual_scale", c.residual_multiplier);
  f.must_be("rope.scaling.finetuned", 1, "models without positions are not supported");
}
inline void write_gguf_granite(const gguf_keys_writer& to, const model_config& c) {
  to.real("attention.scale", c.attention_scale), to.real("logit_scale", c.logits_scaling);
  to.real("embedding_scale", c.embedding_multiplier), to.real("residual_scale", c.residual_multiplier);
}
inline void read_gguf_olmo2(gguf_metadata& f, model_config&) {
  int window = 0;
  f.integer("attention.sliding_window", window, false, 0);
  if (window > 0) f.reject_key("attention.sliding_window", "set, which is OLMo 3 and not supported");
}
inline void read_gguf_smollm3(gguf_metadata&, model_config& c) {
  c.no_rope.clear();
  for (int l = 0; l < c.layers; ++l) c.no_rope.push_back((l + 1) % 4 == 0);
}
// LongRoPE's divisors are tensors.
inline void read_gguf_phi3(gguf_metadata& f, model_config& c) {
  const auto divisors = [&](const char* name, std::vector<float>& to) {
    const auto at = f.in.tensors.find(name);
    if (at == f.in.tensors.end()) return false;
    const view& v = at->second;
    if (v.type != dtype::f32 || v.count() != rotary_dim(c) / 2)
      return f.reject("tensor '", name, "' has ", v.count(), " numbers, expected ", rotary_dim(c) / 2, " of F32"),
             false;
    to.resize(static_cast<std::size_t>(v.count()));
    std::memcpy(to.data(), v.data, to.size() * sizeof(float));
    for (const float d : to)
      if (!(d >= 1e-6F && d <= 1e6F)) f.reject("tensor '", name, "' has a number that divides no frequency");
    return true;
  };
  const bool has_short = divisors("rope_factors_short.weight", c.rope.divisors),
             has_long = divisors("rope_factors_long.weight", c.rope.long_divisors);
  if (has_short != has_long)
    f.reject("one of the tensors 'rope_factors_short.weight' and 'rope_factors_long.weight' is missing");
  if (!has_short || !has_long) return;
  c.rope.kind = rope_kind::longrope;
  int original = 0;
  f.integer("rope.scaling.original_context_length", original, true, 2);
  if (f.problem) return;
  c.rope.original_positions = original, c.rope.factor = c.positions / static_cast<double>(original);
  if (f.find("rope.scaling.attn_factor") != nullptr)
    f.real("rope.scaling.attn_factor", c.rope.attention_factor.emplace(1));
}
inline void write_gguf_phi3(const gguf_keys_writer& to, const model_config& c) {
  if (c.rope.kind != rope_kind::longrope) return;
  to.whole("rope.scaling.original_context_length", static_cast<int>(c.rope.original_positions));
  to.real("rope.scaling.attn_factor", longrope_attention_factor(c.rope));
}

// The file does not say whether the router's softmax is over the chosen experts; llama.cpp derives it from the
// architecture. Every layer has experts.
inline constexpr std::string_view gguf_moe_keys[] = {"expert_feed_forward_length", "expert_shared_feed_forward_length"};
inline constexpr std::string_view gguf_gpt_oss_keys[] = {"expert_feed_forward_length", "rope.freq_base_swa"};
inline void read_gguf_experts(gguf_metadata& f, model_config& c) {
  f.integer("expert_count", c.experts), f.integer("expert_used_count", c.experts_per_token);
  if (!f.problem && (c.experts_per_token > c.experts || c.experts > 1 << 20))
    f.reject_key("expert_used_count", "more than there are experts");
}
inline void read_gguf_mixtral(gguf_metadata& f, model_config& c) {
  read_gguf_experts(f, c), c.expert_intermediate_size = c.intermediate_size;
}
inline void read_gguf_qwen2_moe(gguf_metadata& f, model_config& c) {
  read_gguf_experts(f, c), c.router_over_chosen = false;
  f.integer("expert_feed_forward_length", c.expert_intermediate_size);
  c.shared_expert_intermediate_size = c.intermediate_size;
  f.integer("expert_shared_feed_forward_length", c.shared_expert_intermediate_size, false);
}
inline void read_gguf_qwen3_moe(gguf_metadata& f, model_config& c) {
  read_gguf_experts(f, c), c.router_over_chosen = true;
  f.integer("expert_feed_forward_length", c.expert_intermediate_size);
}
inline void read_gguf_gpt_oss(gguf_metadata& f, model_config& c) {
  read_gguf_experts(f, c), c.router_over_chosen = true;
  f.integer("expert_feed_forward_length", c.expert_intermediate_size);
  f.must_be("rope.freq_base_swa", c.rope.theta, "all layers have the same angles");
  c.rope.truncate = false;  // in the configuration of every gpt-oss; llama.cpp rounds YaRN's pairs for all models
}
inline void write_gguf_mixtral(const gguf_keys_writer& to, const model_config& c) {
  to.whole("expert_count", c.experts), to.whole("expert_used_count", c.experts_per_token);
}
inline void write_gguf_experts(const gguf_keys_writer& to, const model_config& c) {
  write_gguf_mixtral(to, c), to.whole("expert_feed_forward_length", c.expert_intermediate_size);
}
inline void write_gguf_qwen2_moe(const gguf_keys_writer& to, const model_config& c) {
  write_gguf_experts(to, c), to.whole("expert_shared_feed_forward_length", c.shared_expert_intermediate_size);
}

// Models of these many layers are of llama.cpp's type 70B, which gives attention's values more bits in mixtures.
inline bool is_llama_70b(const model_config& c) { return c.layers == 80 && c.heads != c.kv_heads; }
inline bool is_qwen_70b(const model_config& c) { return c.layers == 80; }

struct gguf_family {
  const model_family* family = nullptr;
  const char* name = "";  // general.architecture
  std::span<const name_pair> ends = gguf_llama_ends, modules = gguf_llama_modules;
  bool interleaves_heads = false;  // rows of Q and K are permuted so that RoPE rotates neighboring pairs
  bool adds_one_to_norms = false;
  bool has_layer_norms = false;  // LayerNorm with biases; all projections then have biases too
  bool has_qkv_bias = false;
  bool has_experts = false;        // in files with expert_count above 0
  bool experts_alternate = false;  // the rows of gates and ups alternate in the model's matrix, whose rows are outputs
  bool has_sinks = false;          // self_attn.sinks is attn_sinks.weight
  bool may_rotate_partly = false;  // rope.dimension_count may be less than a head
  // Another row has this name as well. Its files are of this row where they have experts and this row does, and
  // otherwise of the other one.
  bool shares_name = false;
  // Layers l with (l + 1) % window_period == 0 have no sliding window where a file does not say otherwise. 0: llama.cpp
  // computes no windows for this architecture; files state the window, and the layers that have it as a list.
  int window_period = 0;
  int usual_window = 0;  // of files that do not state one
  bool (*is_70b)(const model_config&) = nullptr;
  std::span<const std::string_view> keys{};  // keys of this architecture alone, read by read()
  void (*read)(gguf_metadata&, model_config&) = nullptr;
  void (*write)(const gguf_keys_writer&, const model_config&) = nullptr;
};

inline constexpr gguf_family gguf_families[] = {
    {.family = &families::llama, .name = "llama", .interleaves_heads = true, .is_70b = is_llama_70b},
    {.family = &families::mistral,
     .name = "llama",
     .interleaves_heads = true,
     .shares_name = true,
     .is_70b = is_llama_70b},
    {.family = &families::qwen2, .name = "qwen2", .has_qkv_bias = true, .is_70b = is_qwen_70b},
    {.family = &families::qwen3, .name = "qwen3"},
    {.family = &families::gemma, .name = "gemma", .adds_one_to_norms = true},
    {.family = &families::gemma2,
     .name = "gemma2",
     .modules = gguf_post_norm_modules,
     .adds_one_to_norms = true,
     .window_period = 2,
     .usual_window = 4096,
     .keys = gguf_gemma_keys,
     .read = read_gguf_gemma2,
     .write = write_gguf_gemma},
    {.family = &families::gemma3,
     .name = "gemma3",
     .modules = gguf_post_norm_modules,
     .adds_one_to_norms = true,
     .window_period = 6,
     .keys = gguf_gemma_keys,
     .read = read_gguf_gemma3,
     .write = write_gguf_gemma3},
    {.family = &families::granite,
     .name = "granite",
     .interleaves_heads = true,
     .keys = gguf_granite_keys,
     .read = read_gguf_granite,
     .write = write_gguf_granite},
    {.family = &families::olmo2, .name = "olmo2", .modules = gguf_post_norm_modules, .read = read_gguf_olmo2},
    {.family = &families::phi3,
     .name = "phi3",
     .modules = gguf_phi3_modules,
     .may_rotate_partly = true,
     .read = read_gguf_phi3,
     .write = write_gguf_phi3},
    {.family = &families::smollm3, .name = "smollm3", .interleaves_heads = true, .read = read_gguf_smollm3},
    {.family = &families::mixtral,
     .name = "llama",
     .modules = gguf_moe_modules,
     .interleaves_heads = true,
     .has_experts = true,
     .shares_name = true,
     .keys = gguf_moe_keys,
     .read = read_gguf_mixtral,
     .write = write_gguf_mixtral},
    {.family = &families::qwen2_moe,
     .name = "qwen2moe",
     .modules = gguf_moe_modules,
     .has_qkv_bias = true,
     .has_experts = true,
     .keys = gguf_moe_keys,
     .read = read_gguf_qwen2_moe,
     .write = write_gguf_qwen2_moe},
    {.family = &families::qwen3_moe,
     .name = "qwen3moe",
     .modules = gguf_moe_modules,
     .has_experts = true,
     .keys = gguf_moe_keys,
     .read = read_gguf_qwen3_moe,
     .write = write_gguf_experts},
    {.family = &families::gpt_oss,
     .name = "gpt-oss",
     .modules = gguf_gpt_oss_modules,
     .has_qkv_bias = true,
     .has_experts = true,
     .experts_alternate = true,
     .has_sinks = true,
     .window_period = 2,
     .keys = gguf_gpt_oss_keys,
     .read = read_gguf_gpt_oss,
     .write = write_gguf_experts},
    {.family = &families::gpt2,
     .name = "gpt2",
     .ends = gguf_gpt2_ends,
     .modules = gguf_gpt2_modules,
     .has_layer_norms = true,
     .has_qkv_bias = true},
};

// Returns the row by which a model of this family is stored; null if there is none.
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
// Maps a name in a Hugging Face file to the one in a GGUF file; empty if there is none.
inline std::string name_in_gguf(const gguf_family& f, std::string_view name) {
  for (const auto& [to, from] : f.ends)
    if (name == from) return std::string(to);
  const std::string layers = std::string(f.family->formulas.layers) + ".";
  if (!name.starts_with(layers)) return {};
  const std::string_view rest = name.substr(layers.size());
  const std::size_t module = rest.find('.'), kind = rest.rfind('.');
  if (module == rest.npos || kind <= module) return {};
  for (const auto& [to, from] : f.modules)
    if (rest.substr(module + 1, kind - module - 1) == from) {
      std::string path = "blk.";
      path += rest.substr(0, module);
      path += '.';
      path += to;
      return path += rest.substr(kind);
    }
  return {};
}

}  // namespace graft::io::detail
