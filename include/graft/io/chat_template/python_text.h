// SPDX-License-Identifier: Apache-2.0
// Text as Python writes it: str() and repr() of values, json.dumps, and upper, lower and title case.
#pragma once
#include <graft/io/chat_template/case_tables.h>
#include <graft/io/chat_template/lexer.h>
#include <graft/io/tokenizer/unicode.h>

#include <cmath>

namespace graft::io::jinja {

// The characters of UTF-8 text as code points.
inline std::vector<std::uint32_t> code_points(std::string_view s) {
  std::vector<std::uint32_t> out;
  out.reserve(s.size());
  while (!s.empty()) {
    const hf::character c = hf::first_character(s);
    out.push_back(c.code), s.remove_prefix(std::min<std::size_t>(c.bytes, s.size()));
  }
  return out;
}
inline std::size_t character_count(std::string_view s) {
  return static_cast<std::size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}
// The byte at which the n-th character begins; the size of s where there are fewer.
inline std::size_t byte_of(std::string_view s, std::size_t n) {
  std::size_t i = 0;
  for (; i < s.size(); ++i)
    if ((static_cast<unsigned char>(s[i]) & 0xC0U) != 0x80U && n-- == 0) return i;
  return s.size();
}

enum class letter_case : unsigned char { upper, lower, title };

// The last row that begins at c or before it, of rows in order without overlaps; null where there is none.
template <std::size_t N, std::size_t Width>
const std::int32_t* row_before(const std::int32_t (&table)[N][Width], std::int32_t c) {
  const auto* at = std::upper_bound(std::begin(table), std::end(table), c,
                                    [](std::int32_t x, const std::int32_t(&row)[Width]) { return x < row[0]; });
  return at != std::begin(table) ? at[-1] : nullptr;
}
template <std::size_t N> bool in_ranges(const std::int32_t (&table)[N][2], std::uint32_t code) {
  const auto c = static_cast<std::int32_t>(code);
  const std::int32_t* const row = row_before(table, c);
  return row != nullptr && c <= row[1];
}
template <std::size_t N, std::size_t Width>
const std::int32_t* row_of(const std::int32_t (&table)[N][Width], std::uint32_t code) {
  const auto c = static_cast<std::int32_t>(code);
  const std::int32_t* const row = row_before(table, c);
  return row != nullptr && row[0] == c ? row : nullptr;
}
template <std::size_t N> std::uint32_t shifted(const std::int32_t (&table)[N][4], std::uint32_t code) {
  const auto c = static_cast<std::int32_t>(code);
  const std::int32_t* const row = row_before(table, c);
  return row != nullptr && c <= row[1] && (c - row[0]) % row[2] == 0 ? static_cast<std::uint32_t>(c + row[3]) : code;
}
inline bool cased(std::uint32_t c) {
  return c < 0x80 ? (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') : in_ranges(cased_letters, c);
}
inline void append_cased(std::string& out, std::uint32_t c, letter_case to) {
  if (c < 0x80) {
    const bool change = to == letter_case::lower ? c >= 'A' && c <= 'Z' : c >= 'a' && c <= 'z';
    out += static_cast<char>(change ? c ^ 0x20U : c);
    return;
  }
  const std::int32_t* longer = to == letter_case::upper   ? row_of(longer_upper, c)
                               : to == letter_case::lower ? row_of(longer_lower, c)
                                                          : row_of(longer_title, c);
  if (longer != nullptr) {
    for (int i = 1; i < 4; ++i)
      if (longer[i] != 0) append_utf8(out, static_cast<std::uint32_t>(longer[i]));
    return;
  }
  if (to == letter_case::title)
    if (const std::int32_t* const row = row_of(title_case, c))
      return append_utf8(out, static_cast<std::uint32_t>(row[1]));
  append_utf8(out, to == letter_case::lower ? shifted(lower_case, c) : shifted(upper_case, c));
}
inline std::string changed_case(std::string_view s, letter_case to) {
  std::string out;
  out.reserve(s.size());
  const std::vector<std::uint32_t> all = code_points(s);
  for (std::size_t i = 0; i < all.size(); ++i) {
    // The capital sigma at the end of a word becomes the final one, as Unicode's SpecialCasing says.
    if (all[i] == 0x3A3 && to == letter_case::lower) {
      const bool final = i > 0 && cased(all[i - 1]) && (i + 1 == all.size() || !cased(all[i + 1]));
      append_utf8(out, final ? 0x3C2 : 0x3C3);
    } else {
      append_cased(out, all[i], to);
    }
  }
  return out;
}
// str.title(): the first letter of every run of letters in title case, the others in lower case.
inline std::string title_words(std::string_view s) {
  std::string out;
  bool inside = false;
  for (const std::uint32_t c : code_points(s)) {
    append_cased(out, c, inside ? letter_case::lower : letter_case::title);
    inside = cased(c);
  }
  return out;
}
inline std::string capitalized(std::string_view s) {
  std::string out;
  if (s.empty()) return out;
  const hf::character first = hf::first_character(s);
  append_cased(out, first.code, letter_case::title);
  return out + changed_case(s.substr(first.bytes), letter_case::lower);
}

// repr() of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
inline std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char all[40];
  const auto end = std::to_chars(std::begin(all), std::end(all), d, std::chars_format::scientific);
  std::string s(std::begin(all), end.ptr), sign;
  if (s[0] == '-') sign = "-", s.erase(0, 1);
  const std::size_t e = s.find('e');
  int exponent = 0;
  std::from_chars(s.data() + e + (s[e + 1] == '+' ? 2 : 1), s.data() + s.size(), exponent);
  std::string digits = s.substr(0, 1);
  if (e > 2) digits += s.substr(2, e - 2);
  if (exponent < -4 || exponent >= 16) {
    const std::string power = std::to_string(std::abs(exponent));
    return sign + digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "") +
           (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

inline void append_hex(std::string& out, const char* prefix, std::uint32_t code, int digits) {
  out += prefix;
  for (int i = digits - 1; i >= 0; --i) out += "0123456789abcdef"[(code >> (4 * i)) & 15U];
}
// repr() of a string.
inline std::string python_repr(std::string_view s) {
  const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  std::string out(1, quote);
  for (const std::uint32_t c : code_points(s)) {
    if (c == static_cast<std::uint32_t>(quote) || c == '\\')
      out += '\\', out += static_cast<char>(c);
    else if (c == '\n' || c == '\r' || c == '\t')
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else if (c < 0x20 || c == 0x7F || (c >= 0x80 && in_ranges(not_printable, c)))
      append_hex(out, c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U", c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    else
      append_utf8(out, c);
  }
  return out += quote;
}

// Appends repr() of a value. The output is bounded by the state's limits.
inline void append_repr(state& s, std::string& out, const value& v) {
  if (out.size() > s.limits.output_bytes) s.fits(out.size());
  if (!s.work()) return;
  const auto sequence = [&](const char* open, const char* close) {
    out += open;
    for (std::size_t i = 0; i < v.size() && !s.failed; ++i) {
      if (i > 0) out += ", ";
      append_repr(s, out, v.items()[i]);
    }
    if (v.is(kind::tuple) && v.size() == 1) out += ',';
    out += close;
  };
  switch (v.what) {
    case kind::undefined: out += "Undefined"; return;
    case kind::none: out += "None"; return;
    case kind::boolean: out += v.whole != 0 ? "True" : "False"; return;
    case kind::integer: out += std::to_string(v.whole); return;
    case kind::real: out += float_text(v.real); return;
    case kind::string:
      if (!s.read(v.text().size())) return;
      out += v.markup ? "Markup(" + python_repr(v.text()) + ")" : python_repr(v.text());
      return;
    case kind::list: return sequence("[", "]");
    case kind::tuple: return sequence("(", ")");
    case kind::range: out += v.text(); return;
    case kind::view: return sequence((v.text() + "([").c_str(), "])");
    case kind::dict:
      out += '{';
      for (std::size_t i = 0; i < v.size() && !s.failed; ++i) {
        if (i > 0) out += ", ";
        append_repr(s, out, v.body->keys[i]);
        out += ": ";
        append_repr(s, out, v.items()[i]);
      }
      out += '}';
      return;
    default:
      s.stop("printing a " + std::string(type_name(v)) + " is not supported, expected text" +
             (v.is(kind::iterator) ? " or the filter list" : ""));
  }
}
// str() of a value, as `{{ … }}` prints it.
inline void append_text(state& s, std::string& out, const value& v) {
  if (v.is_string()) {
    if (s.fits(v.text().size())) out += v.text();
  } else if (!v.is_undefined()) {
    append_repr(s, out, v);
  }
}
inline std::string to_text(state& s, const value& v) {
  std::string out;
  append_text(s, out, v);
  return out;
}

// json.dumps as the filter tojson of transformers calls it.
struct json_style {
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent{};  // indentation of one level
  std::string comma = ", ", colon = ": ";
};
inline void append_json_string(std::string& out, std::string_view s, bool ascii) {
  if (!ascii) {
    out += json_text(s);
    return;
  }
  for (const std::string quoted_text = json_text(s); const std::uint32_t c : code_points(quoted_text)) {
    if (c < 0x7F)
      out += static_cast<char>(c);
    else if (c == 0x7F)
      out += '\x7F';
    else if (c < 0x10000)
      append_hex(out, "\\u", c, 4);
    else
      append_hex(out, "\\u", 0xD800 + ((c - 0x10000) >> 10U), 4),
          append_hex(out, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FFU), 4);
  }
}
inline std::string json_number_text(double d) {
  return std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_text(d);
}
inline void append_json(state& s, std::string& out, const value& v, const json_style& style, std::size_t depth = 0) {
  if (out.size() > s.limits.output_bytes) s.fits(out.size());
  if (!s.work()) return;
  const auto line = [&](std::size_t levels) {
    if (!style.indent) return;
    out += '\n';
    for (std::size_t i = 0; i < levels && s.read(style.indent->size()); ++i) out += *style.indent;
  };
  switch (v.what) {
    case kind::none: out += "null"; return;
    case kind::boolean: out += v.whole != 0 ? "true" : "false"; return;
    case kind::integer: out += std::to_string(v.whole); return;
    case kind::real: out += json_number_text(v.real); return;
    case kind::string:
      if (s.read(v.text().size())) append_json_string(out, v.text(), style.ascii);
      return;
    case kind::list:
    case kind::tuple:
      out += '[';
      for (std::size_t i = 0; i < v.size() && !s.failed; ++i) {
        if (i > 0) out += style.comma;
        line(depth + 1);
        append_json(s, out, v.items()[i], style, depth + 1);
      }
      if (v.size() > 0) line(depth);
      out += ']';
      return;
    case kind::dict: {
      std::vector<std::size_t> order(v.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      const std::vector<value>& keys = v.body->keys;
      if (style.sort_keys) {
        if (!std::all_of(keys.begin(), keys.end(), [](const value& k) { return k.is_string(); }))
          return void(s.stop("tojson sorts keys that are not all strings, expected strings"));
        s.work(8 * order.size());
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return keys[a].text() < keys[b].text(); });
      }
      out += '{';
      bool first = true;
      for (const std::size_t i : order) {
        if (s.failed) return;
        if (!first) out += style.comma;
        first = false;
        line(depth + 1);
        const value& key = keys[i];
        if (key.is_string()) {
          if (s.read(key.text().size())) append_json_string(out, key.text(), style.ascii);
        } else if (key.is(kind::none) || key.is_number()) {
          out += '"', append_json(s, out, key, style), out += '"';
        } else {
          s.stop("tojson: keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
        }
        out += style.colon;
        append_json(s, out, v.items()[i], style, depth + 1);
      }
      if (!order.empty()) line(depth);
      out += '}';
      return;
    }
    default:
      s.stop(v.is_undefined() && !v.body->text.empty()
                 ? "tojson of an undefined value: " + v.body->text
                 : "tojson: object of type " + std::string(type_name(v)) + " is not JSON serializable");
  }
}

}  // namespace graft::io::jinja
