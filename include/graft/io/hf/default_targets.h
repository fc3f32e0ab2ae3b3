// SPDX-License-Identifier: Apache-2.0
// The modules that PEFT 0.21 targets where 'target_modules' is missing or null, by method and type of model
// (peft/utils/constants.py, TRANSFORMERS_MODELS_TO_*_TARGET_MODULES_MAPPING), and those whose inputs IA3 scales where
// 'feedforward_modules' is. PEFT has none for the types that are missing here, and refuses them too.
#pragma once
#include <graft/io/error_text.h>
#include <graft/io/json/writer.h>
#include <graft/io/peft/adapter_fields.h>
#include <graft/model/families.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace graft::io::hf {

namespace detail {

inline bool is_one_of(std::string_view name, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), name) != all.end();
}
// An empty list: PEFT has no default.
inline std::vector<std::string> default_target_names(std::string_view method, std::string_view model) {
  const bool is_gpt2 = model == "gpt2", is_opt = model == "opt";
  const bool known =
      is_gpt2 || is_opt ||
      is_one_of(model, {"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"});
  if (!known) return {};
  if (method == "IA3") {
    if (is_gpt2) return {"c_attn", "mlp.c_proj"};
    if (is_opt) return {"q_proj", "k_proj", "fc2"};
    if (model == "mixtral") return {"k_proj", "v_proj", "w2"};
    return {is_one_of(model, {"llama", "mistral"}) ? "k_proj" : "q_proj", "v_proj", "down_proj"};
  }
  if (method == "LN_TUNING") {
    if (is_gpt2) return {"ln_1", "ln_2", "ln_f"};
    if (is_one_of(model, {"qwen2", "qwen3"})) return {"post_attention_layernorm"};
    if (is_one_of(model, {"llama", "mistral", "gemma"})) return {"input_layernorm", "post_attention_layernorm", "norm"};
    if (is_one_of(model, {"gemma2", "gemma3_text"}))
      return {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
              "norm"};
    return {};
  }
  std::vector<std::string> opt_linears{"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"};
  if (method == "OSF") {
    if (is_gpt2) return {"c_attn", "c_proj"};
    if (is_opt) return opt_linears;
    return {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj"};
  }
  if (method == "BEFT") return is_gpt2 ? std::vector<std::string>{} : std::vector<std::string>{"v_proj"};
  if (is_one_of(method, {"ADALORA", "VBLORA"})) {
    if (is_one_of(model, {"mistral", "mixtral"})) return {};
    if (is_opt) return opt_linears;
  }
  if (is_gpt2) return {is_one_of(method, {"C3A", "FOURIERFT", "WAVEFT"}) ? "mlp.c_proj" : "c_attn"};
  return {"q_proj", "v_proj"};
}

// IA3's modules whose inputs are scaled: the last one of its modules, on every type of model. Where the configuration
// lists its targets, the answer is those of them, because a file may name no others. PEFT has modules for the type.
inline std::vector<std::string> default_feedforward_names(std::string_view model, const name_pattern& targets) {
  const std::string last = default_target_names("IA3", model).back();
  if (targets.kind != name_pattern::form::list) return {last};
  std::vector<std::string> names;
  for (const std::string& name : targets.names)
    if (name.ends_with(last)) names.push_back(name);
  return names;
}
// "model.embed_tokens.weight" is the table of module embed_tokens.
inline std::string input_embedding_name(const model_family& family) {
  const std::string_view path = std::string_view(family.token_embedding);
  const std::string_view module = path.substr(0, path.rfind('.'));
  return std::string(module.substr(module.rfind('.') + 1));
}
// States a list of names in the configuration as if its file had it.
inline void state_names(adapter_config& c, const char* key, const std::vector<std::string>& names) {
  json list;
  list.what = json::kind::list;
  for (const std::string& name : names) list.items.push_back(json_string(name));
  const auto at = std::find(c.parsed.keys.begin(), c.parsed.keys.end(), key);
  if (at == c.parsed.keys.end())
    c.parsed.keys.emplace_back(key), c.parsed.items.push_back(std::move(list));
  else
    c.parsed.items[static_cast<std::size_t>(at - c.parsed.keys.begin())] = std::move(list);
}
inline status no_default(const char* key, const adapter_config& c, const model_family& family) {
  return fail("'", key, "' of adapter_config.json is missing or null, and PEFT has no modules of its own for ",
              c.type_name(), " on ", family.name, " models; list them there");
}

}  // namespace detail

// Returns the configuration with the modules that PEFT would target, also in the file that is saved from it.
inline result<adapter_config> with_default_targets(adapter_config c, const model_family& family) {
  const std::string_view type = c.custom_name ? std::string_view() : std::string_view(c.type_name());
  if (c.default_targets) {
    std::vector<std::string> names;
    if (type == "TRAINABLE_TOKENS")
      names = {detail::input_embedding_name(family)};
    else if (!type.empty())
      names = detail::default_target_names(type, family.name);
    if (names.empty() && c.target_parameters.empty()) return detail::no_default("target_modules", c, family).failure();
    detail::state_names(c, "target_modules", names);
    c.default_targets = false, c.target_modules.names = names;
  }
  if (type == "IA3" && c.set("feedforward_modules") == nullptr) {
    if (detail::default_target_names(type, family.name).empty())
      return detail::no_default("feedforward_modules", c, family).failure();
    detail::state_names(c, "feedforward_modules", detail::default_feedforward_names(family.name, c.target_modules));
  }
  return c;
}

}  // namespace graft::io::hf
