// SPDX-License-Identifier: Apache-2.0
// The part of adapter_config.json that all methods of PEFT share: which method, which modules, trained biases.
// target_modules has no default: PEFT resolves it before it saves, so a file without it was not written by PEFT.
#pragma once
#include <graft/io/adapter_fields.h>
#include <graft/io/config_refused.h>
#include <graft/io/peft/all.h>
#include <graft/model/table.h>

namespace graft::io {

// A method that the program added: its file states numbers under the names of the formula.
inline constexpr peft_method own_method{};

inline void read_type(config_reader& in, adapter_config& c, const method_table& methods) {
  const json* v = in.at("peft_type");
  text known;
  for (const peft_method* m : peft::all) known << (known.empty() ? "" : ", ") << m->type;
  for (const method& m : methods.added()) known << ", " << m.name;
  if (v == nullptr) return in.reject("the key 'peft_type' is missing, expected one of ", known);
  for (const peft_method* m : peft::all)
    if (v->says(m->type)) return void(c.type = m);
  for (const method& m : methods.added())
    if (v->says(m.name)) return c.type = &own_method, void(c.own = m.name);
  in.expected("peft_type", *v, "one of ", known, " (in capitals)");
}

inline void read_names(config_reader& in, const char* key, name_pattern& out) {
  const json* v = in.set(key);
  if (v == nullptr || !v->is_word()) return in.words(key, out.names);
  out.regex = v->word;
  out.kind = name_pattern::form::regex;
}

inline bool says_all_linear(std::string s) {
  for (char& ch : s) ch = ch >= 'A' && ch <= 'Z' ? static_cast<char>(ch + ('a' - 'A')) : ch;
  return s == "all-linear";
}

inline void read_bias(config_reader& in, adapter_config& c) {
  const auto* v = in.at("bias");
  const char* only = c.type->bias_only;
  if (v == nullptr || only == nullptr) return;
  if (v->says("none"))
    c.bias = trained_bias::none;
  else if (v->says("all"))
    c.bias = trained_bias::all;
  else if (v->says(only) || (c.type->bias_also != nullptr && v->says(c.type->bias_also)))
    c.bias = trained_bias::targeted;
  else
    in.expected("bias", *v, "\"none\", \"all\" or \"", only, '"');
}

inline void read_layers(config_reader& in, adapter_config& c) {
  in.words("layers_pattern", c.layers_pattern, true);
  const auto* v = in.set("layers_to_transform");
  if (v == nullptr) return;
  const auto index = [](const json& e) { return e.is_whole() && fits_int(e); };
  if (index(*v)) return c.layers_to_transform.assign(1, static_cast<int>(v->real));
  if (!v->is_list() || !std::all_of(v->items.begin(), v->items.end(), index))
    return in.expected("layers_to_transform", *v, "a layer number, a list of layer numbers or null");
  for (const json& e : v->items) c.layers_to_transform.push_back(static_cast<int>(e.real));
  if (c.target_modules.kind != name_pattern::form::list && !c.layers_to_transform.empty())
    in.reject("'layers_to_transform' is set although 'target_modules' is not a list, expected one or the other");
}

inline void read_trainable_tokens(config_reader& in, adapter_config& c) {
  const char* const key = "trainable_token_indices";
  const json* v = in.set(key);
  if (v == nullptr || is_unset(*v)) return;
  if (!v->is_object()) return in.tokens(key, *v, c.trainable_tokens.emplace_back().tokens);
  in.entries(key, [&](const std::string& module, const json& list) {
    in.tokens(key, list, c.trainable_tokens.emplace_back(token_rows{module}).tokens);
  });
}

inline void read_common(config_reader& in, adapter_config& c) {
  in.word("peft_version", c.peft_version);
  in.word("base_model_name_or_path", c.base_model);
  in.word("task_type", c.task_type);
  if (in.set("target_modules") == nullptr)
    in.reject(
        "'target_modules' is missing or null, expected the list of module names or the regular expression that "
        "PEFT writes when it saves");
  read_names(in, "target_modules", c.target_modules);
  if (says_all_linear(c.target_modules.regex)) c.target_modules.kind = name_pattern::form::all_linear;
  read_names(in, "exclude_modules", c.exclude_modules);
  in.words("modules_to_save", c.modules_to_save);
  read_trainable_tokens(in, c);
  read_layers(in, c);
  read_bias(in, c);
  in.flag("fan_in_fan_out", c.fan_in_fan_out);
}

}  // namespace graft::io
