// SPDX-License-Identifier: Apache-2.0
// Typed, checked reading of a JSON configuration file (config.json, adapter_config.json, quant_state). An absent key
// leaves the caller's variable unchanged, so its initial value is the default. A key that is present must have the
// right type and range; `problem` keeps the first violation:
//     reader.integer("r", config.r, 1);      // "FILE: 'r' is "16", expected an integer from 1 to 2147483647"
#pragma once
#include <graft/io/json/json.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>

namespace graft::io {

inline text found(const json& v) {
  switch (v.what) {
    case json::kind::null: return "null";
    case json::kind::boolean: return v.flag ? "true" : "false";
    case json::kind::whole:
    case json::kind::negative:
    case json::kind::real: return clipped(v.word);
    case json::kind::word: return clipped(json_text(v.word));
    case json::kind::list: return "a list";
    case json::kind::object: return "an object";
  }
  return "";
}
inline bool fits_int(const json& v) {
  const bool integer = v.is_unsigned() || v.what == json::kind::negative;
  return integer && v.real >= std::numeric_limits<int>::min() && v.real <= std::numeric_limits<int>::max();
}

struct config_reader {
  const json& object;
  std::string file;
  std::optional<error> problem{};

  const json* at(const char* key) const { return object.find(key); }
  // Returns null for absent keys and for JSON null: where PEFT's default is None, both mean the default.
  const json* set(const char* key) const {
    const json* v = at(key);
    return v != nullptr && !v->is_null() ? v : nullptr;
  }
  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(file, parts...);
  }
  template <class... Parts> void expected(const char* key, const json& v, const Parts&... parts) {
    reject('\'', key, "' is ", found(v), ", expected ", parts...);
  }

  void flag(const char* key, bool& out) {
    const json* v = at(key);
    if (v == nullptr) return;
    if (!v->is_boolean()) return expected(key, *v, "true or false");
    out = v->flag;
  }
  void integer(const char* key, int& out, int least, int most = std::numeric_limits<int>::max()) {
    const json* v = at(key);
    if (v == nullptr) return;
    if (!fits_int(*v) || v->real < least || v->real > most)
      return expected(key, *v, "an integer from ", least, " to ", most);
    out = static_cast<int>(v->real);
  }
  void real(const char* key, double& out, double most = std::numeric_limits<double>::max()) {
    const json* v = at(key);
    if (v == nullptr) return;
    if (!v->is_number() || !(v->real >= 0) || v->real > most)
      return expected(key, *v, "a number ",
                      most == 1                          ? "from 0 to 1"
                      : v->is_number() && v->real > most ? "that a float can hold, at most 3.4e38"
                                                         : "that is not negative");
    out = v->real;
  }
  void word(const char* key, std::string& out) {
    const json* v = set(key);
    if (v == nullptr) return;
    if (!v->is_string()) return expected(key, *v, "a string or null");
    out = v->word;
  }
  void words(const char* key, std::vector<std::string>& out, bool one_is_enough = false) {
    const json* v = set(key);
    if (v == nullptr) return;
    if (one_is_enough && v->is_string()) return out.assign(1, v->word);
    if (!v->is_list()) return expected(key, *v, "a list of strings or null");
    out.clear();
    for (const json& e : v->items) {
      if (!e.is_string() || e.word.empty())
        return reject('\'', key, "' holds ", found(e), ", expected only strings that are not empty");
      out.push_back(e.word);
    }
  }
  // Appends a list of token ids; a token that is listed twice is an error.
  void tokens(const char* key, const json& v, std::vector<int>& out) {
    const auto is_token = [](const json& e) { return e.is_unsigned() && fits_int(e); };
    if (!v.is_list() || v.items.empty() || !std::all_of(v.items.begin(), v.items.end(), is_token))
      return expected(key, v, "a list of tokens");
    for (const json& e : v.items) out.push_back(static_cast<int>(e.real));
    std::vector<int> sorted = out;
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
      reject('\'', key, "' names token ", *twice, " twice, expected each once");
  }
  // Calls each(key, value) for the entries of an object in file order; null counts as the empty object.
  template <class F> void entries(const char* key, F each) {
    const json* v = set(key);
    if (v == nullptr) return;
    if (!v->is_object()) return expected(key, *v, "an object or null");
    for (std::size_t i = 0; i < v->keys.size(); ++i) each(v->keys[i], v->items[i]);
  }
};

}  // namespace graft::io
