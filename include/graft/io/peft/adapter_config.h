// SPDX-License-Identifier: Apache-2.0
// Reads a PEFT folder: adapter_config.json and adapter_model.safetensors (peft,
// docs/source/developer_guides/checkpoint.md). An absent key has PEFT's default (io/peft/METHOD.h); peft_type and
// target_modules have none. A key with a wrong value is an error. adapter_model.bin is a pickle, which can run code
// when it is read, and is refused.
#pragma once
#include <graft/core/library.h>
#include <graft/io/peft/adapter_fields.h>
#include <graft/io/safetensors/reader.h>
#include <graft/model/method_table.h>

namespace graft::io {

GRAFT_LIBRARY result<adapter_config> parse_adapter_config(std::string_view content, std::string_view file,
                                                          const method_table& methods = built_in_methods());
// `where` is a folder or the adapter_config.json in it.
GRAFT_LIBRARY result<adapter_config> read_adapter_config(const std::string& where,
                                                         const method_table& methods = built_in_methods());
// `where` is a folder or the adapter_model.safetensors in it.
GRAFT_LIBRARY result<safetensors> read_adapter_weights(const std::string& where);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/peft/all.h>
#include <graft/io/peft/config_refused.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace graft::io {

// Reads and checks adapter_config.json: the keys that all methods share (method, target modules, trained biases,
// layers), then the method's own keys and the rules between them, as io/peft/METHOD.h states them. target_modules has
// no default: PEFT resolves it before it saves. Unknown keys are ignored because every release of PEFT adds some; but
// an unknown key that is a near miss of a known and absent one is a spelling mistake, and an error.

// Stands for the methods that the program added: their files state numbers under the names that the formula uses.
inline constexpr peft_method custom_method{};

inline void read_type(config_reader& in, adapter_config& c, const method_table& methods) {
  const json* v = in.at("peft_type");
  text known;
  for (const peft_method* m : peft::all) known << (known.empty() ? "" : ", ") << m->type;
  for (const method& m : methods.added()) known << ", " << m.name;
  if (v == nullptr) return in.reject("the key 'peft_type' is missing, expected one of ", known);
  for (const peft_method* m : peft::all)
    if (v->says(m->type)) return void(c.type = m);
  for (const method& m : methods.added())
    if (v->says(m.name)) return c.type = &custom_method, void(c.custom_name = m);
  in.expected("peft_type", *v, "one of ", known,
              " (in capitals), or a method of your own in the method_table that the call is given");
}

inline void read_names(config_reader& in, const char* key, name_pattern& out) {
  const json* v = in.set(key);
  if (v == nullptr || !v->is_string()) return in.words(key, out.names);
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
  const auto index = [](const json& e) { return e.is_unsigned() && fits_int(e); };
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
    in.tokens(key, list, c.trainable_tokens.emplace_back(trainable_token_rows{module}).tokens);
  });
}

// PEFT adapts parameters of modules by LoRA alone, and without the keys that it refuses there
// (peft/tuners/lora/layer.py, ParamWrapper).
inline void read_target_parameters(config_reader& in, adapter_config& c) {
  in.words("target_parameters", c.target_parameters);
  if (c.target_parameters.empty()) return;
  if (!same_text(c.type_name(), "LORA"))
    return in.reject("'target_parameters' is set, which PEFT has for LORA alone, and this adapter is ", c.type_name());
  for (const char* key : {"use_dora", "lora_bias", "fan_in_fan_out"})
    if (const json* v = in.set(key); v != nullptr && v->is_boolean() && v->flag)
      in.reject('\'', key, "' is true and 'target_parameters' is set, expected at most one of them, as in PEFT");
  if (const json* v = in.set("lora_dropout"); v != nullptr && v->is_number() && v->real != 0)
    in.reject("'lora_dropout' is ", found(*v), " and 'target_parameters' is set, expected 0, as in PEFT");
}

inline void read_common(config_reader& in, adapter_config& c) {
  in.word("peft_version", c.peft_version);
  in.word("base_model_name_or_path", c.base_model);
  in.word("task_type", c.task_type);
  read_target_parameters(in, c);
  c.default_targets = in.set("target_modules") == nullptr;
  read_names(in, "target_modules", c.target_modules);
  if (says_all_linear(c.target_modules.regex)) c.target_modules.kind = name_pattern::form::all_linear;
  read_names(in, "exclude_modules", c.exclude_modules);
  in.words("modules_to_save", c.modules_to_save);
  read_trainable_tokens(in, c);
  read_layers(in, c);
  read_bias(in, c);
  in.flag("fan_in_fan_out", c.fan_in_fan_out);
}

inline text listed_words(std::string_view words) {
  text out;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    const std::string_view one = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    const bool literal = one == "true" || one == "false";
    out << (out.empty() ? "" : words.empty() ? " or " : ", ");
    if (literal)
      out << clipped(one);
    else
      out << '"' << clipped(one) << '"';
  }
  return out;
}

inline void read_word(config_reader& in, const peft_key& k, const json& v) {
  const std::string parsed = v.is_boolean() ? (v.flag ? "true" : "false") : v.is_string() ? v.word : "";
  const bool quoted = v.is_string() && (parsed == "true" || parsed == "false");
  if (parsed.empty() || quoted || parsed.find(' ') != parsed.npos || !lists(k.words, parsed.c_str()))
    in.expected(k.name, v, listed_words(k.words));
}

inline void read_by_module(config_reader& in, const peft_key& k) {
  in.entries(k.name, [&](const std::string& path, const json& v) {
    const bool good =
        k.integers ? v.is_unsigned() && v.whole != 0 && fits_int(v) : v.is_number() && v.real >= 0 && v.real <= k.most;
    if (!good)
      in.reject(
          '\'', k.name, "' of ", in_quotes(path), " is ", found(v), ", expected ",
          k.integers ? "a positive integer" : "a number that is not negative and at most 3.4e38, the largest float");
  });
}

inline void read_key(config_reader& in, const peft_key& k) {
  const json* v = k.nullable ? in.set(k.name) : in.at(k.name);
  if (v == nullptr) {
    if (k.required != nullptr) in.reject("the key '", k.name, "' is missing, expected it: ", k.required);
    return;
  }
  bool ignored_flag = false;
  int ignored_whole = 0;
  double ignored_real = 0;
  name_pattern ignored_names;
  switch (k.form) {
    case key_form::flag: return in.flag(k.name, ignored_flag);
    case key_form::whole: return in.integer(k.name, ignored_whole, static_cast<int>(k.least), static_cast<int>(k.most));
    case key_form::seed:
      if (!v->is_unsigned()) in.expected(k.name, *v, "an integer from 0 to 2^64-1");
      return;
    case key_form::real: return in.real(k.name, ignored_real, k.most);
    case key_form::word: return read_word(in, k, *v);
    case key_form::by_module: return read_by_module(in, k);
    case key_form::names: return read_names(in, k.name, ignored_names);
    case key_form::unread: return;
  }
}

inline void check_rule(config_reader& in, const adapter_config& c, const peft_rule& r) {
  const long long a = static_cast<long long>(c.number(r.a)), b = static_cast<long long>(c.number(r.b));
  switch (r.what) {
    case peft_rule::kind::one_is_zero:
      if ((a == 0) == (b == 0))
        in.reject('\'', r.a, "' is ", a, " and '", r.b, "' is ", b, ", expected exactly one of them to be 0");
      return;
    case peft_rule::kind::not_both:
      if (a != 0 && b != 0) in.reject('\'', r.a, "' and '", r.b, "' are both true, expected at most one, as in PEFT");
      return;
    case peft_rule::kind::at_most:
      if (a > b) in.reject('\'', r.a, "' is ", a, ", expected at most ", r.b, " = ", b);
      return;
    case peft_rule::kind::divides:
      if (b % std::max(1LL, a) != 0) in.reject('\'', r.b, "' is ", b, ", expected a multiple of ", r.a, " = ", a);
      return;
  }
}

inline constexpr const char* shared_keys[] = {
    "peft_type",       "peft_version",        "base_model_name_or_path", "task_type",      "revision",
    "auto_mapping",    "inference_mode",      "target_modules",          "bias",           "exclude_modules",
    "modules_to_save", "layers_to_transform", "layers_pattern",          "fan_in_fan_out", "target_parameters"};

template <class F> void each_known_key(const adapter_config& c, F see) {
  for (const peft_key& k : c.type->keys) see(k.name);
  for (const char* k : shared_keys) see(k);
  for (const refused_key& k : refused_keys) see(k.key);
}
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (const char letter : a) {
    std::size_t corner = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = corner + (letter == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, corner + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

// Two words are near misses if at most two letters, and fewer than half of the intended word, have to be inserted,
// deleted or replaced (Levenshtein distance).
inline bool is_near_miss(std::string_view written, std::string_view meant) {
  const std::size_t longer = std::max(written.size(), meant.size()), shorter = std::min(written.size(), meant.size());
  if (longer > shorter + 2 || longer > 100) return false;
  const std::size_t edits = edit_distance(written, meant);
  return edits > 0 && edits <= 2 && 2 * edits < meant.size();
}

// Returns the known key that `written` misspells; null if `written` is a known key or resembles none. Distances are
// computed for unknown keys only.
inline const char* suggested_key(const adapter_config& c, std::string_view written) {
  bool known = false;
  each_known_key(c, [&](const char* k) { known = known || written == k; });
  const char* closest = nullptr;
  if (!known)
    each_known_key(c, [&](const char* k) {
      if (closest == nullptr && is_near_miss(written, k) && c.parsed.find(k) == nullptr) closest = k;
    });
  return closest;
}

inline void read_keys(config_reader& in, const adapter_config& c) {
  if (c.type != &custom_method)
    for (const std::string& written : c.parsed.keys)
      if (const char* meant = suggested_key(c, written))
        in.reject(c.type_name(), " has no key ", in_quotes(written), ", expected '", meant, "'");
  for (const peft_key& k : c.type->keys) read_key(in, k);
  if (in.problem) return;
  for (const peft_rule& r : c.type->rules) check_rule(in, c, r);
  if (c.type->check != nullptr) c.type->check(in, c);
}

inline constexpr std::uint64_t largest_config = std::uint64_t{16} << 20;

inline bool is_pickle_name(std::string_view path) {
  for (const char* e : {".bin", ".pt", ".pth", ".pkl", ".ckpt"})
    if (path.ends_with(e)) return true;
  return false;
}

inline error pickle_refused(const std::string& path) {
  return fail_in(path,
                 "this is a pickle checkpoint, which can run code when it is read; save it with safetensors "
                 "(save_pretrained with safe_serialization=True)");
}

GRAFT_LIBRARY result<adapter_config> parse_adapter_config(std::string_view content, std::string_view file,
                                                          const method_table& methods) {
  auto parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return guarded(file, [&]() -> result<adapter_config> {
    adapter_config c;
    c.parsed = std::move(*parsed);
    config_reader in{c.parsed, std::string(file)};
    read_type(in, c, methods);
    if (in.problem) return *in.problem;
    refuse_unsupported(in);
    read_common(in, c);
    read_keys(in, c);
    if (in.problem) return *in.problem;
    return c;
  });
}

GRAFT_LIBRARY result<adapter_config> read_adapter_config(const std::string& where, const method_table& methods) {
  if (is_pickle_name(where)) return pickle_refused(where);
  const std::string file = is_directory(where) ? where + "/adapter_config.json" : where;
  const result<std::vector<std::byte>> bytes = read_file(file, largest_config);
  if (!bytes) return bytes.failure();
  return parse_adapter_config(as_chars(*bytes), file, methods);
}

GRAFT_LIBRARY result<safetensors> read_adapter_weights(const std::string& where) {
  if (is_pickle_name(where)) return pickle_refused(where);
  if (!is_directory(where)) return read_safetensors(where);
  const std::string file = where + "/adapter_model.safetensors", pickle = where + "/adapter_model.bin";
  if (!exists(file) && exists(pickle)) return pickle_refused(pickle);
  return read_safetensors(file);
}

}  // namespace graft::io
#endif
