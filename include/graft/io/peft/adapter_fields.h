// SPDX-License-Identifier: Apache-2.0
// adapter_config: a parsed adapter_config.json, with members for the keys that all methods share and look-up by name
// for a method's own keys. An absent key has PEFT's default, which io/peft/METHOD.h states.
//     c.whole("r"), c.number("lora_alpha"), c.on("use_dora"), c.word("variant")
#pragma once
#include <graft/io/json/json.h>
#include <graft/io/peft/method.h>
#include <graft/model/methods.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace graft::io {

// Which biases of the base model are trained with the adapter and stored in its file.
enum class trained_bias { none, all, targeted };

// Selects modules: a list of names, a regular expression, or "all-linear". An empty list stands for an absent key.
struct name_pattern {
  enum class form { list, regex, all_linear };
  form kind = form::list;
  std::vector<std::string> names{};
  std::string regex{};
  bool empty() const { return kind == form::list && names.empty(); }
};

// Rows of an embedding or head that are trained besides the adapter; an empty module name is the input embedding.
struct trainable_token_rows {
  std::string module{};
  std::vector<int> tokens{};
};

struct adapter_config {
  const peft_method* type = nullptr;
  std::optional<method> custom_name{};  // a method that the program added; `type` is then custom_method
  json parsed{};                        // the whole file
  std::string peft_version{}, base_model{}, task_type{};
  bool fan_in_fan_out = false;
  trained_bias bias = trained_bias::none;
  name_pattern target_modules{}, exclude_modules{};
  bool default_targets = false;  // target_modules is missing or null: io/hf/default_targets.h
  std::vector<std::string> modules_to_save{}, layers_pattern{};
  std::vector<std::string> target_parameters{};  // LoRA on the experts of a mixture: "experts.down_proj"
  std::vector<int> layers_to_transform{};
  std::vector<trainable_token_rows> trainable_tokens{};

  const char* type_name() const { return custom_name ? custom_name->name : type->type; }
  const peft_key* key(std::string_view name) const {
    for (const peft_key& k : type->keys)
      if (name == k.name) return &k;
    return nullptr;
  }
  // Returns the value in the file; null if the key is absent or JSON null, so that PEFT's default applies.
  const json* set(std::string_view name) const {
    const json* v = parsed.find(name);
    return v != nullptr && !v->is_null() ? v : nullptr;
  }
  double number(std::string_view name) const {
    const json* v = set(name);
    if (v != nullptr) return v->is_boolean() ? (v->flag ? 1 : 0) : v->real;
    const peft_key* k = key(name);
    return k != nullptr ? k->otherwise : 0;
  }
  int whole(std::string_view name) const { return static_cast<int>(number(name)); }
  bool on(std::string_view name) const { return number(name) != 0; }
  std::uint64_t seed(std::string_view name) const {
    if (const json* v = set(name)) return v->whole;
    const peft_key* k = key(name);
    return k != nullptr ? static_cast<std::uint64_t>(k->otherwise) : 0;
  }
  std::string word(std::string_view name) const {
    if (const json* v = set(name)) return v->is_boolean() ? (v->flag ? "true" : "false") : v->word;
    const peft_key* k = key(name);
    return k != nullptr ? k->word : "";
  }
};

}  // namespace graft::io
