// SPDX-License-Identifier: Apache-2.0
// Strict JSON (RFC 8259) into values that keep the keys in file order. Errors are: two equal keys, nesting deeper than
// asked for, NaN, text after the value, bad UTF-8, a byte order mark, NUL. Every error says where: line, column and the
// last key read. Written out here because a header that everybody includes for the sake of one small format must cost
// nothing to include; the tests hold it against nlohmann-json.
#pragma once
#include <graft/core/library.h>
#include <graft/io/file.h>

namespace graft::io {

class json {
 public:
  enum class kind : unsigned char { null, boolean, whole, negative, real, word, list, object };
  kind what = kind::null;
  bool flag = false;
  std::uint64_t whole = 0;  // of a number without sign, point and exponent
  double real = 0;          // of any number
  std::string word;         // a string; a number as it is written
  std::vector<std::string> keys;
  std::vector<json> items;  // of a list, or one for each key

  bool is_null() const { return what == kind::null; }
  bool is_boolean() const { return what == kind::boolean; }
  bool is_number() const { return is_whole() || what == kind::negative || what == kind::real; }
  bool is_whole() const { return what == kind::whole; }  // an integer from 0 to 2^64-1
  bool is_word() const { return what == kind::word; }
  bool is_list() const { return what == kind::list; }
  bool is_object() const { return what == kind::object; }
  bool says(std::string_view s) const { return is_word() && word == s; }
  const json* find(std::string_view key) const {
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (keys[i] == key) return &items[i];
    return nullptr;
  }
};

GRAFT_LIBRARY result<json> parse_json(std::string_view input, std::string_view file, int max_depth = 64);
GRAFT_LIBRARY result<json> read_json(const std::string& path, std::uint64_t limit = 100'000'000, int max_depth = 64);
// A string as JSON writes it; only what must be escaped is.
GRAFT_LIBRARY std::string json_text(std::string_view s);

inline std::string_view as_chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/json_parser.h>

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
