// SPDX-License-Identifier: Apache-2.0
// Typed reading of a JSON configuration. An absent key leaves the member as it is, which is how defaults are stated;
// a key that is present must have exactly the right type and range, and the first that has not is the file's error:
//     reader.integer("r", config.r, 1);      // "FILE: 'r' is "16", expected an integer from 1 to 2147483647"
#pragma once
#include <graft/io/json.h>

#include <initializer_list>
#include <limits>
#include <optional>

namespace graft::io {

inline text found(const nlohmann::ordered_json& v) {
  if (v.is_array()) return "a list";
  if (v.is_object()) return "an object";
  return clipped(v.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

struct config_reader {
  using json = nlohmann::ordered_json;
  const json& object;
  std::string file;
  std::optional<error> problem{};

  const json* at(const char* key) const {
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
  }
  // Present and not null: for keys whose default in PEFT is None, null says the same as leaving them out.
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
    out = v->get<bool>();
  }
  void integer(const char* key, int& out, int least, int most = std::numeric_limits<int>::max()) {
    const json* v = at(key);
    if (v == nullptr) return;
    const bool fits = v->is_number_unsigned()  ? v->get<std::uint64_t>() <= std::numeric_limits<int>::max()
                      : v->is_number_integer() ? v->get<std::int64_t>() >= std::numeric_limits<int>::min()
                                               : false;
    if (!fits || v->get<int>() < least || v->get<int>() > most)
      return expected(key, *v, "an integer from ", least, " to ", most);
    out = v->get<int>();
  }
  void real(const char* key, double& out, double most = std::numeric_limits<double>::max()) {
    const json* v = at(key);
    if (v == nullptr) return;
    if (!v->is_number() || !(v->get<double>() >= 0) || v->get<double>() > most)
      return expected(key, *v, "a number ", most == 1 ? "from 0 to 1" : "that is not negative");
    out = v->get<double>();
  }
  void word(const char* key, std::string& out) {
    const json* v = set(key);
    if (v == nullptr) return;
    if (!v->is_string()) return expected(key, *v, "a string or null");
    out = v->get<std::string>();
  }
  void words(const char* key, std::vector<std::string>& out, bool one_is_enough = false) {
    const json* v = set(key);
    if (v == nullptr) return;
    if (one_is_enough && v->is_string()) return out.assign(1, v->get<std::string>());
    if (!v->is_array()) return expected(key, *v, "a list of strings or null");
    out.clear();
    for (const json& e : *v) {
      if (!e.is_string() || e.get_ref<const std::string&>().empty())
        return reject('\'', key, "' holds ", found(e), ", expected only strings that are not empty");
      out.push_back(e.get<std::string>());
    }
  }
  // Objects whose values are read one by one, in file order; null is the same as {}.
  template <class F> void entries(const char* key, F each) {
    const json* v = set(key);
    if (v == nullptr) return;
    if (!v->is_object()) return expected(key, *v, "an object or null");
    for (const auto& [name, value] : v->items()) each(name, value);
  }
};

}  // namespace graft::io
