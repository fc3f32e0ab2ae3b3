// SPDX-License-Identifier: Apache-2.0
// What an adapter_config.json says: the keys that all methods share, read, and the method's own by name. An absent key
// has PEFT's default, which io/peft/NAME.h states.
//     c.whole("r"), c.number("lora_alpha"), c.on("use_dora"), c.word("variant")
#pragma once
#include <graft/io/json.h>
#include <graft/io/peft/method.h>

#include <map>
#include <string>
#include <vector>

namespace graft::io {

// Which biases of the base model were trained with the adapter and are in its file.
enum class trained_bias { none, all, targeted };

// A list of names, or one regular expression, or "all-linear"; an empty list is a key that is absent or null.
struct name_pattern {
  enum class form { list, regex, all_linear };
  form kind = form::list;
  std::vector<std::string> names{};
  std::string regex{};
  bool empty() const { return kind == form::list && names.empty(); }
};

// Rows of an embedding, or of a head, that are trained beside the adapter; no name is the embedding of the input.
struct token_rows {
  std::string module{};
  std::vector<int> tokens{};
};

struct adapter_config {
  const peft_method* type = nullptr;
  std::string own{};  // the name of a method that the program added; the type is then `own_method`
  json said{};        // the file
  std::string peft_version{}, base_model{}, task_type{};
  bool fan_in_fan_out = false;
  trained_bias bias = trained_bias::none;
  name_pattern target_modules{}, exclude_modules{};
  std::vector<std::string> modules_to_save{}, layers_pattern{};
  std::vector<int> layers_to_transform{};
  std::vector<token_rows> trainable_tokens{};

  const char* type_name() const { return own.empty() ? type->type : own.c_str(); }
  const peft_key* key(std::string_view name) const {
    for (const peft_key& k : type->keys)
      if (name == k.name) return &k;
    return nullptr;
  }
  // The value in the file, or null where PEFT's default stands.
  const json* set(std::string_view name) const {
    const json* v = said.find(name);
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
