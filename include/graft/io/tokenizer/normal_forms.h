// SPDX-License-Identifier: Apache-2.0
// Unicode normalization forms NFC, NFD, NFKC and NFKD (Unicode Standard Annex 15): decompose, sort marks by combining
// class, compose. Only marks, characters that decompose and those that a mark follows are processed; all other text is
// copied.
#pragma once
#include <graft/io/tokenizer/unicode.h>
#include <graft/io/tokenizer/unicode_tables.h>

#include <algorithm>
#include <iterator>

namespace graft::io::hf {

enum class normal_form : unsigned char { nfc, nfd, nfkc, nfkd };
constexpr bool composes(normal_form f) { return f == normal_form::nfc || f == normal_form::nfkc; }
constexpr bool is_compatible(normal_form f) { return f == normal_form::nfkc || f == normal_form::nfkd; }

namespace normalization {

// Hangul syllables encode their consonants and vowel (L, V, T) arithmetically (Unicode Standard, section 3.12).
inline constexpr std::uint32_t s_base = 0xAC00, l_base = 0x1100, v_base = 0x1161, t_base = 0x11A7, v_count = 21,
                               t_count = 28, l_count = 19, s_count = l_count * v_count * t_count;

inline unsigned combining_class(std::uint32_t c) {
  const auto* const at = std::lower_bound(std::begin(combining_classes), std::end(combining_classes), c,
                                          [](const std::uint32_t(&r)[3], std::uint32_t code) { return r[1] < code; });
  return at != std::end(combining_classes) && (*at)[0] <= c ? (*at)[2] : 0;
}

// Where the compatibility decomposition of a character begins in its table; 0 if it has none of its own.
inline std::size_t compatibility_entry(std::uint32_t c) {
  using entry = std::pair<std::uint32_t, std::size_t>;
  static const std::vector<entry> entries = [] {
    std::vector<entry> all;
    for (std::size_t i = 0; i < std::size(compatibility_decompositions); i += 2 + compatibility_decompositions[i + 1])
      all.emplace_back(compatibility_decompositions[i], i + 1);
    return all;
  }();
  const auto at = std::lower_bound(entries.begin(), entries.end(), entry(c, 0));
  return at != entries.end() && at->first == c ? at->second : 0;
}
inline void decompose(std::uint32_t c, bool compatible, std::vector<std::uint32_t>& out) {
  if (const std::size_t entry = compatible ? compatibility_entry(c) : 0; entry != 0) {
    const std::uint32_t* const parts = compatibility_decompositions + entry;
    out.insert(out.end(), parts + 1, parts + 1 + *parts);
    return;
  }
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
    decompose((*at)[1], compatible, out);
    if ((*at)[2] != 0) decompose((*at)[2], compatible, out);
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
// Returns the composition of two characters, or 0 if they do not compose.
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

// Normalizes `marked`, a starter character with the marks and other characters that may combine with it.
inline void put_normal(normal_form form, const std::vector<std::uint32_t>& marked, std::string& out) {
  std::vector<std::uint32_t> parts;
  for (const std::uint32_t c : marked) decompose(c, is_compatible(form), parts);
  const auto by_class = [](std::uint32_t a, std::uint32_t b) { return combining_class(a) < combining_class(b); };
  for (std::size_t from = 0; from < parts.size();) {
    std::size_t to = from + 1;
    while (to < parts.size() && combining_class(parts[to]) != 0) ++to;
    const bool starts = combining_class(parts[from]) == 0;
    std::stable_sort(parts.begin() + static_cast<std::ptrdiff_t>(from + (starts ? 1 : 0)),
                     parts.begin() + static_cast<std::ptrdiff_t>(to), by_class);
    from = to;
  }
  if (!composes(form)) {
    for (const std::uint32_t c : parts) append_utf8(out, c);
    return;
  }
  // A mark composes with the last starter unless a character of the same or a higher class stands between them.
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

// Characters that a form changes, or that combine with a character before them.
inline const code_table& affected(normal_form form) {
  static const std::array<code_table, 4> tables = [] {
    code_set::list marks, composed, decomposed, compatible;
    for (const auto& r : combining_classes) marks.push_back({r[0], r[1]});
    for (const auto& r : compositions) composed.push_back({r[2], r[2]}), decomposed.push_back({r[0], r[0]});
    for (const auto& r : replacements) marks.push_back({r[0], r[0]});
    for (std::size_t i = 0; i < std::size(compatibility_decompositions); i += 2 + compatibility_decompositions[i + 1])
      compatible.push_back({compatibility_decompositions[i], compatibility_decompositions[i]});
    composed.push_back({0x1161, 0x1175}), composed.push_back({0x11A8, 0x11C2});  // Hangul vowels and final consonants
    decomposed.push_back({s_base, s_base + s_count - 1});
    const code_set both = code_set::of(marks), nfc = both | code_set::of(composed),
                   nfd = both | code_set::of(decomposed), k = code_set::of(compatible);
    return std::array<code_table, 4>{code_table(nfc), code_table(nfd), code_table(nfc | k), code_table(nfd | k)};
  }();
  return tables[static_cast<std::size_t>(form)];
}

}  // namespace normalization

// Normalizes well-formed UTF-8.
inline std::string normalized(normal_form form, std::string_view s) {
  const code_table& affected = normalization::affected(form);
  const auto matters = [&](const character& c) { return c.bytes != 0 && affected.has(c.code); };
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
    normalization::put_normal(form, marked, out);
  }
  return out;
}

}  // namespace graft::io::hf
