// SPDX-License-Identifier: Apache-2.0
// Normalization Form C (Unicode Standard Annex 15): decompose, put marks in the order of their classes, compose. Only a
// character that a mark follows, and the marks, are touched; everything else is copied.
#pragma once
#include <graft/io/hf/unicode.h>

#include <algorithm>
#include <iterator>

namespace graft::io::hf {

namespace nfc {

// Hangul syllables: L, V and T are numbered in the syllable's own number.
inline constexpr std::uint32_t s_base = 0xAC00, l_base = 0x1100, v_base = 0x1161, t_base = 0x11A7, v_count = 21,
                               t_count = 28, l_count = 19, s_count = l_count * v_count * t_count;

inline unsigned combining_class(std::uint32_t c) {
  const auto* const at = std::lower_bound(std::begin(combining_classes), std::end(combining_classes), c,
                                          [](const std::uint32_t(&r)[3], std::uint32_t code) { return r[1] < code; });
  return at != std::end(combining_classes) && (*at)[0] <= c ? (*at)[2] : 0;
}

inline void decompose(std::uint32_t c, std::vector<std::uint32_t>& out) {
  if (c - s_base < s_count) {
    const std::uint32_t s = c - s_base;
    out.push_back(l_base + s / (v_count * t_count));
    out.push_back(v_base + s % (v_count * t_count) / t_count);
    if (s % t_count != 0) out.push_back(t_base + s % t_count);
    return;
  }
  const auto before = [](const std::uint32_t(&r)[3], std::uint32_t code) { return r[0] < code; };
  const auto look = [&](const auto& table) {
    const auto* const at = std::lower_bound(std::begin(table), std::end(table), c, before);
    if (at == std::end(table) || (*at)[0] != c) return false;
    decompose((*at)[1], out);
    if ((*at)[2] != 0) decompose((*at)[2], out);
    return true;
  };
  if (!look(compositions) && !look(replacements)) out.push_back(c);
}

struct pair_of {
  std::uint32_t first, second, composed;
  friend bool operator<(const pair_of& a, const pair_of& b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
};
// 0 where the two do not compose.
inline std::uint32_t composed(std::uint32_t a, std::uint32_t b) {
  static const std::vector<pair_of> pairs = [] {
    std::vector<pair_of> all;
    for (const auto& r : compositions) all.push_back({r[1], r[2], r[0]});
    std::sort(all.begin(), all.end());
    return all;
  }();
  if (a - l_base < l_count && b - v_base < v_count) return s_base + ((a - l_base) * v_count + b - v_base) * t_count;
  if (a - s_base < s_count && (a - s_base) % t_count == 0 && b - t_base - 1 < t_count - 1) return a + b - t_base;
  const pair_of wanted{a, b, 0};
  const auto at = std::lower_bound(pairs.begin(), pairs.end(), wanted);
  return at != pairs.end() && at->first == a && at->second == b ? at->composed : 0;
}

// `marked`: a character and what follows it up to the next one that stands for itself.
inline void put_composed(std::vector<std::uint32_t>& marked, std::string& out) {
  std::vector<std::uint32_t> parts;
  for (const std::uint32_t c : marked) decompose(c, parts);
  const auto by_class = [](std::uint32_t a, std::uint32_t b) { return combining_class(a) < combining_class(b); };
  for (std::size_t from = 0; from < parts.size();) {
    std::size_t to = from + 1;
    while (to < parts.size() && combining_class(parts[to]) != 0) ++to;
    const bool starts = combining_class(parts[from]) == 0;
    std::stable_sort(parts.begin() + static_cast<std::ptrdiff_t>(from + (starts ? 1 : 0)),
                     parts.begin() + static_cast<std::ptrdiff_t>(to), by_class);
    from = to;
  }
  // A mark joins the last starter unless something of the same or a higher class stands between them.
  std::vector<std::uint32_t> kept;
  std::ptrdiff_t starter = -1;
  unsigned between = 0;
  for (const std::uint32_t c : parts) {
    const unsigned k = combining_class(c);
    const bool adjacent = starter == static_cast<std::ptrdiff_t>(kept.size()) - 1;
    if (starter >= 0 && (adjacent || (between < k && between != 0))) {
      std::uint32_t& base = kept[static_cast<std::size_t>(starter)];
      if (const std::uint32_t one = composed(base, c); one != 0) {
        base = one;
        continue;
      }
    }
    if (k == 0) starter = static_cast<std::ptrdiff_t>(kept.size());
    between = k;
    kept.push_back(c);
  }
  for (const std::uint32_t c : kept) append_utf8(out, c);
}

}  // namespace nfc

inline bool looks_normal(std::string_view s) {
  const unsigned char* const classes = char_classes();
  for (std::size_t i = 0; i < s.size();) {
    const character c = first_character(s.substr(i));
    if ((classes[c.code] & matters_in_nfc) != 0) return false;
    i += c.bytes;
  }
  return true;
}

// Of well-formed UTF-8.
inline std::string normalized_nfc(std::string_view s) {
  const unsigned char* const classes = char_classes();
  const auto matters = [&](const character& c) { return c.bytes != 0 && (classes[c.code] & matters_in_nfc) != 0; };
  std::string out;
  out.reserve(s.size());
  std::vector<std::uint32_t> marked;
  while (!s.empty()) {
    const character c = first_character(s);
    character next = first_character(s.substr(c.bytes));
    if (!matters(c) && !matters(next)) {
      out += s.substr(0, c.bytes), s.remove_prefix(c.bytes);
      continue;
    }
    marked.assign(1, c.code);
    s.remove_prefix(c.bytes);
    for (; matters(next); next = first_character(s)) marked.push_back(next.code), s.remove_prefix(next.bytes);
    nfc::put_composed(marked, out);
  }
  return out;
}

}  // namespace graft::io::hf
