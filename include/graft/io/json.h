// SPDX-License-Identifier: Apache-2.0
// Strict JSON (RFC 8259) on top of nlohmann-json's event parser. Alone, that library lets the last of two equal keys
// win, skips a byte order mark and stops at a NUL; here these are errors, like nesting deeper than asked for, NaN, text
// after the value and bad UTF-8. Every error says where: line, column and the last key read. ordered_json keeps the
// keys in file order.
#pragma once
#include <graft/io/file.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

namespace graft::io {

// Counts what the parser has taken, because its events carry no position.
struct counted_chars {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  const char* at;
  std::size_t* taken;

  reference operator*() const { return *at; }
  counted_chars& operator++() { return ++at, ++*taken, *this; }
  counted_chars operator++(int) {
    const counted_chars old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const counted_chars& a, const counted_chars& b) { return a.at == b.at; }
  friend bool operator!=(const counted_chars& a, const counted_chars& b) { return a.at != b.at; }
};

// Receives the parser's events; each returns false to stop, with `problem` set.
template <class Json> struct strict_builder {
  struct level {
    Json* node;
    std::set<std::string> keys;
  };
  int max_depth;
  Json root{};
  Json* slot = nullptr;
  std::vector<level> open{};
  std::string last_key{};
  text problem{};

  Json* place(Json v) {
    Json* to = &root;
    if (!open.empty() && open.back().node->is_array()) {
      open.back().node->push_back(nullptr);
      to = &open.back().node->back();
    } else if (!open.empty()) {
      to = slot;
    }
    *to = std::move(v);
    return to;
  }
  bool enter(Json empty) {
    if (static_cast<int>(open.size()) >= max_depth) return problem << "nested deeper than " << max_depth, false;
    open.push_back({place(std::move(empty)), {}});
    return true;
  }
  bool leave() { return open.pop_back(), true; }

  bool null() { return place(nullptr), true; }
  bool boolean(bool v) { return place(v), true; }
  bool number_integer(std::int64_t v) { return place(v), true; }
  bool number_unsigned(std::uint64_t v) { return place(v), true; }
  bool number_float(double v, const std::string&) { return place(v), true; }
  bool string(std::string& v) { return place(std::move(v)), true; }
  bool binary(typename Json::binary_t&) { return problem << "binary values are not JSON", false; }
  bool start_object(std::size_t) { return enter(Json::object()); }
  bool end_object() { return leave(); }
  bool start_array(std::size_t) { return enter(Json::array()); }
  bool end_array() { return leave(); }
  bool key(std::string& k) {
    last_key = k;
    if (!open.back().keys.insert(k).second) return problem << "the key " << in_quotes(k) << " occurs twice", false;
    // An ordered object is a vector: appending keeps hostile files with many keys linear, operator[] would search.
    auto& object = open.back().node->template get_ref<typename Json::object_t&>();
    if constexpr (requires { object.emplace_back(k, nullptr); })
      slot = &object.emplace_back(k, nullptr).second;
    else
      slot = &object.emplace(k, nullptr).first->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) {
    std::string_view why = e.what();
    if (const auto k = why.find("] "); k != why.npos) why.remove_prefix(k + 2);
    if (const auto k = why.find(": "); why.starts_with("parse error") && k != why.npos) why.remove_prefix(k + 2);
    return problem << clipped(why, 240), false;
  }
};

template <class Json> result<Json> parse_json_as(std::string_view input, std::string_view file, int max_depth = 64) {
  return guarded(file, [&]() -> result<Json> {
    if (input.starts_with("\xEF\xBB\xBF")) return fail_in(file, "line 1, column 1: a byte order mark, expected JSON");
    std::size_t taken = 0;
    strict_builder<Json> b{max_depth};
    const counted_chars first{input.data(), &taken}, last{input.data() + input.size(), &taken};
    // The parser takes a NUL for the end of the text, which would hide whatever follows it.
    const std::size_t nul = input.find('\0');
    if (nul == input.npos && Json::sax_parse(first, last, &b)) return std::move(b.root);
    if (nul != input.npos) b.problem << "a NUL character, expected JSON", taken = nul + 1;
    const std::string_view before = input.substr(0, taken == 0 ? 0 : taken - 1);
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = before.size() - (newline == before.npos ? 0 : newline + 1) + 1;
    const auto line = static_cast<std::uint64_t>(std::count(before.begin(), before.end(), '\n')) + 1;
    text after;
    if (!b.last_key.empty()) after << " (last key " << in_quotes(b.last_key) << ')';
    return fail_in(file, "line ", number(line), ", column ", number(column), after, ": ", b.problem);
  });
}

inline result<nlohmann::json> parse_json(std::string_view input, std::string_view file, int max_depth = 64) {
  return parse_json_as<nlohmann::json>(input, file, max_depth);
}

inline std::string_view as_chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Json = nlohmann::json>
result<Json> read_json(const std::filesystem::path& path, std::uint64_t limit = 100'000'000, int max_depth = 64) {
  const result<std::vector<std::byte>> bytes = read_file(path, limit);
  if (!bytes) return bytes.failure();
  return parse_json_as<Json>(as_chars(*bytes), path.string(), max_depth);
}

}  // namespace graft::io
