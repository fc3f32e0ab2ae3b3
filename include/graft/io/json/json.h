// SPDX-License-Identifier: Apache-2.0
// Strict JSON (RFC 8259): a value type, and a parser that rejects duplicate keys, NaN, nesting deeper than `max_depth`,
// text after the value, ill-formed UTF-8, byte order marks and NUL. Objects keep their keys in file order, and every
// error names line, column and the last key read. The library has its own parser so that including it costs no large
// dependency; the tests compare it with nlohmann-json.
#pragma once
#include <graft/core/library.h>
#include <graft/io/file.h>

namespace graft::io {

class json {
 public:
  enum class kind : unsigned char { null, boolean, whole, negative, real, word, list, object };
  kind what = kind::null;
  bool flag = false;
  std::uint64_t whole = 0;  // value of a number without sign, point and exponent
  double real = 0;          // value of any number
  std::string word;         // text of a string; a number as it is written
  std::vector<std::string> keys;
  std::vector<json> items;  // elements of a list; values of an object, one per key

  bool is_null() const { return what == kind::null; }
  bool is_boolean() const { return what == kind::boolean; }
  bool is_number() const { return is_unsigned() || what == kind::negative || what == kind::real; }
  bool is_unsigned() const { return what == kind::whole; }  // an integer from 0 to 2^64-1
  bool is_string() const { return what == kind::word; }
  bool is_list() const { return what == kind::list; }
  bool is_object() const { return what == kind::object; }
  bool says(std::string_view s) const { return is_string() && word == s; }
  const json* find(std::string_view key) const {
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (keys[i] == key) return &items[i];
    return nullptr;
  }
};

GRAFT_LIBRARY result<json> parse_json(std::string_view input, std::string_view file, int max_depth = 64);
GRAFT_LIBRARY result<json> read_json(const std::string& path, std::uint64_t limit = 100'000'000, int max_depth = 64);
// Quotes a string for JSON; only characters that must be escaped are escaped.
GRAFT_LIBRARY std::string json_text(std::string_view s);

inline std::string_view as_chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/json/parser.h>

namespace graft::io {

GRAFT_LIBRARY result<json> read_json(const std::string& path, std::uint64_t limit, int max_depth) {
  const result<std::vector<std::byte>> bytes = read_file(path, limit);
  if (!bytes) return bytes.failure();
  return parse_json(as_chars(*bytes), path, max_depth);
}

GRAFT_LIBRARY std::string json_text(std::string_view s) {
  constexpr char hex[] = "0123456789abcdef";
  constexpr std::string_view plain_names = "\"\\bfnrt", meant = "\"\\\b\f\n\r\t";
  std::string out = "\"";
  for (const char c : s) {
    if (const std::size_t k = meant.find(c); k != meant.npos)
      out += '\\', out += plain_names[k];
    else if (static_cast<unsigned char>(c) < 0x20)
      out += "\\u00", out += hex[(c >> 4) & 15], out += hex[c & 15];
    else
      out += c;
  }
  return out += '"';
}

}  // namespace graft::io
#endif
