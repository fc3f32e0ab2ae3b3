// SPDX-License-Identifier: Apache-2.0
// The keys of one method against what io/peft/NAME.h says of them, and the rules between them. Keys that nobody knows
// are let pass, because each release of PEFT adds some; but one that is nearly the name of a known key, which the file
// does not have, is a spelling mistake and an error.
#pragma once
#include <graft/io/config_common.h>
#include <graft/io/near.h>

namespace graft::io {

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
  const std::string said = v.is_boolean() ? (v.flag ? "true" : "false") : v.is_word() ? v.word : "";
  const bool quoted = v.is_word() && (said == "true" || said == "false");
  if (said.empty() || quoted || said.find(' ') != said.npos || !lists(k.words, said.c_str()))
    in.expected(k.name, v, listed_words(k.words));
}

inline void read_by_module(config_reader& in, const peft_key& k) {
  in.entries(k.name, [&](const std::string& path, const json& v) {
    const bool good = k.integers ? v.is_whole() && v.whole != 0 && fits_int(v) : v.is_number() && v.real >= 0;
    if (!good)
      in.reject('\'', k.name, "' of ", in_quotes(path), " is ", found(v), ", expected ",
                k.integers ? "a positive integer" : "a number that is not negative");
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
      if (!v->is_whole()) in.expected(k.name, *v, "an integer from 0 to 2^64-1");
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
    "peft_type",       "peft_version",        "base_model_name_or_path", "task_type",     "revision",
    "auto_mapping",    "inference_mode",      "target_modules",          "bias",          "exclude_modules",
    "modules_to_save", "layers_to_transform", "layers_pattern",          "fan_in_fan_out"};

// The key that `written` was meant to be, where it is none itself.
inline const char* meant_key(const adapter_config& c, std::string_view written) {
  const char* near = nullptr;
  bool known = false;
  const auto see = [&](const char* k) {
    known = known || written == k;
    if (near == nullptr && nearly(written, k) && c.said.find(k) == nullptr) near = k;
  };
  for (const peft_key& k : c.type->keys) see(k.name);
  for (const char* k : shared_keys) see(k);
  for (const refused_key& k : refused_keys) see(k.key);
  return known ? nullptr : near;
}

inline void read_keys(config_reader& in, const adapter_config& c) {
  if (c.type != &own_method)
    for (const std::string& written : c.said.keys)
      if (const char* meant = meant_key(c, written))
        in.reject(c.type_name(), " has no key ", in_quotes(written), ", expected '", meant, "'");
  for (const peft_key& k : c.type->keys) read_key(in, k);
  if (in.problem) return;
  for (const peft_rule& r : c.type->rules) check_rule(in, c, r);
  if (c.type->check != nullptr) c.type->check(in, c);
}

}  // namespace graft::io
