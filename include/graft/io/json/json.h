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
#include <graft/io/utf8.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace graft::io {

// Recursive-descent parser: it reads one value that spans the whole text, or says where and why not.
class json_parser {
 public:
  json_parser(std::string_view input, int max_depth) : in_(input), depth_(max_depth) {}

  bool parse(json& out) {
    if (in_.starts_with("\xEF\xBB\xBF")) return stop("a byte order mark, expected JSON");
    if (const std::size_t nul = in_.find('\0'); nul != in_.npos)
      return at_ = nul, stop("a NUL character, expected JSON");
    if (!value(out)) return false;
    skip_space();
    return at_ == in_.size() || stop("expected end of input");
  }
  text problem() const {
    const std::string_view before = in_.substr(0, at_);
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = before.size() - (newline == before.npos ? 0 : newline + 1) + 1;
    text t;
    t << "line " << number(static_cast<std::uint64_t>(std::count(before.begin(), before.end(), '\n')) + 1)
      << ", column " << number(column);
    if (!last_key_.empty()) t << " (last key " << in_quotes(last_key_) << ')';
    return t << ": " << why_;
  }

 private:
  template <class... Parts> bool stop(const Parts&... parts) {
    (why_ << ... << parts);
    return false;
  }
  bool unexpected(const char* wanted) {
    if (at_ >= in_.size()) return stop("unexpected end of input, expected ", wanted);
    return stop("unexpected ", in_quotes(in_.substr(at_, 1)), ", expected ", wanted);
  }
  char next() const { return at_ < in_.size() ? in_[at_] : '\0'; }
  bool take(char c) { return next() == c && (++at_, true); }
  void skip_space() {
    while (next() == ' ' || next() == '\t' || next() == '\n' || next() == '\r') ++at_;
  }
  bool value(json& out) {
    skip_space();
    switch (next()) {
      case '{': return object(out);
      case '[': return list(out);
      case '"': return out.what = json::kind::word, string(out.word);
      case 't': return out.what = json::kind::boolean, out.flag = true, literal("true");
      case 'f': return out.what = json::kind::boolean, literal("false");
      case 'n': return literal("null");
      default: return (next() == '-' || digit()) ? number_value(out) : unexpected("a value");
    }
  }
  bool literal(std::string_view name) {
    if (!in_.substr(at_).starts_with(name)) return stop("invalid literal, expected true, false or null");
    return at_ += name.size(), true;
  }
  bool list(json& out) {
    if (!open()) return false;
    out.what = json::kind::list;
    skip_space();
    if (take(']')) return close();
    do {
      if (!value(out.items.emplace_back())) return false;
      skip_space();
    } while (take(','));
    return take(']') ? close() : unexpected("',' or ']'");
  }
  bool object(json& out) {
    if (!open()) return false;
    out.what = json::kind::object;
    std::set<std::string> seen;
    skip_space();
    if (take('}')) return close();
    do {
      skip_space();
      if (next() != '"') return unexpected("a key in double quotes");
      std::string& key = out.keys.emplace_back();
      if (!string(key)) return false;
      last_key_ = key;
      if (!seen.insert(key).second) return --at_, stop("the key ", in_quotes(key), " occurs twice");
      skip_space();
      if (!take(':')) return unexpected("':'");
      if (!value(out.items.emplace_back())) return false;
      skip_space();
    } while (take(','));
    return take('}') ? close() : unexpected("',' or '}'");
  }
  bool open() {
    if (used_ == depth_) return stop("nested deeper than ", depth_);
    return ++used_, ++at_, true;
  }
  bool close() { return --used_, true; }

  bool digit() const { return next() >= '0' && next() <= '9'; }
  bool digits() {
    if (!digit()) return unexpected("a digit");
    while (digit()) ++at_;
    return true;
  }
  bool number_value(json& out) {
    const std::size_t from = at_;
    const bool negative = take('-');
    if (!take('0') && !digits()) return false;
    bool integer = true;
    if (take('.')) {
      integer = false;
      if (!digits()) return false;
    }
    if (take('e') || take('E')) {
      integer = false;
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    out.word = in_.substr(from, at_ - from);
    const char *first = out.word.data(), *last = first + out.word.size();
    if (std::from_chars(first, last, out.real).ec != std::errc{} && !too_small(out.word))
      return at_ = from, stop("the number ", clipped(out.word), " does not fit a double");
    const bool whole = integer && !negative && std::from_chars(first, last, out.whole).ec == std::errc{};
    out.what = whole ? json::kind::whole : integer && negative ? json::kind::negative : json::kind::real;
    return true;
  }
  // Tells underflow from overflow when from_chars fails: a number too small for a double is read as zero.
  static bool too_small(std::string_view s) {
    const std::size_t e = s.find_first_of("eE");
    return e != s.npos ? s[e + 1] == '-' : s.starts_with("0.") || s.starts_with("-0.");
  }
  bool string(std::string& out) {
    for (++at_; !take('"');) {
      if (at_ >= in_.size()) return unexpected("the end of a string");
      const auto c = static_cast<unsigned char>(next());
      if (c < 0x20) return stop("a control character in a string, expected it escaped");
      if (c == '\\') {
        if (!escape(out)) return false;
        continue;
      }
      const std::size_t n = utf8_length(in_.substr(at_));
      if (n == 0) return stop("ill-formed UTF-8 in a string");
      out += in_.substr(at_, n), at_ += n;
    }
    return true;
  }
  bool escape(std::string& out) {
    constexpr std::string_view names = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    ++at_;
    if (const std::size_t k = at_ < in_.size() ? names.find(next()) : names.npos; k != names.npos)
      return out += meant[k], ++at_, true;
    std::uint32_t code = 0, low = 0;
    if (!take('u')) return unexpected("one of \" \\ / b f n r t u after '\\'");
    if (!hex4(code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      if (!in_.substr(at_).starts_with("\\u")) return stop("a high surrogate without a low surrogate behind it");
      at_ += 2;
      if (!hex4(low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return stop("a high surrogate without a low surrogate behind it");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      return stop("a low surrogate without a high surrogate before it");
    }
    append_utf8(out, code);
    return true;
  }
  bool hex4(std::uint32_t& out) {
    const std::string_view four = in_.substr(at_, 4);
    if (four.size() < 4 || std::from_chars(four.data(), four.data() + 4, out, 16).ptr != four.data() + 4)
      return stop("expected four hexadecimal digits after '\\u'");
    return at_ += 4, true;
  }

  std::string_view in_;
  std::size_t at_ = 0;
  int depth_, used_ = 0;
  std::string last_key_;
  text why_;
};

GRAFT_LIBRARY result<json> parse_json(std::string_view input, std::string_view file, int max_depth) {
  return guarded(file, [&]() -> result<json> {
    json out;
    json_parser parser(input, max_depth);
    if (!parser.parse(out)) return fail_in(file, parser.problem());
    return out;
  });
}

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
