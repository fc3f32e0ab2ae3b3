// SPDX-License-Identifier: Apache-2.0
// Unicode characters and sets of them: decoding of UTF-8, sets as sorted ranges (code_set), tables for fast tests
// (code_table), and the properties that regular expressions and pretokenizers name (\p{Lu}, \s, \w).
#pragma once
#include <graft/io/tokenizer/unicode_properties.h>
#include <graft/io/utf8.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace graft::io::hf {

inline constexpr std::uint32_t last_code = 0x10FFFF;

// For hash tables by text that are searched with a string_view.
struct text_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};

struct character {
  std::uint32_t code = 0;
  std::uint32_t bytes = 0;  // length in UTF-8; 0 at the end of the text
};
// Decodes the first character of well-formed UTF-8.
inline character first_character(std::string_view s) {
  if (s.empty()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(s[i])); };
  const std::uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b < 0xE0) return {(b & 0x1FU) << 6U | (byte(1) & 0x3FU), 2};
  if (b < 0xF0) return {(b & 0xFU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU), 3};
  return {(b & 7U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU), 4};
}
// Begin of the character that ends at `at`, in well-formed UTF-8; `at` must not be 0.
inline std::size_t character_before(std::string_view s, std::size_t at) {
  do --at;
  while ((static_cast<unsigned char>(s[at]) & 0xC0U) == 0x80U);
  return at;
}

// A set of code points: sorted ranges that do not touch.
class code_set {
 public:
  struct range {
    std::uint32_t from, to;
  };
  code_set() = default;
  code_set(std::uint32_t from, std::uint32_t to) : ranges_{{from, to}} {}
  using list = std::vector<range>;
  static code_set of(list ranges) {
    code_set s;
    s.ranges_ = std::move(ranges);
    return s.sort(), s;
  }
  template <std::size_t N> static code_set of(const std::uint32_t (&table)[N][2]) {
    list ranges;
    for (const auto& r : table) ranges.push_back({r[0], r[1]});
    return of(std::move(ranges));
  }
  bool has(std::uint32_t c) const {
    const auto at =
        std::lower_bound(ranges_.begin(), ranges_.end(), c, [](range r, std::uint32_t code) { return r.to < code; });
    return at != ranges_.end() && at->from <= c;
  }
  code_set operator|(const code_set& o) const {
    code_set s = *this;
    s.ranges_.insert(s.ranges_.end(), o.ranges_.begin(), o.ranges_.end());
    return s.sort(), s;
  }
  code_set operator~() const {
    code_set s;
    std::uint32_t next = 0;
    for (const range r : ranges_) {
      if (r.from > next) s.ranges_.push_back({next, r.from - 1});
      next = r.to + 1;
    }
    if (next <= last_code) s.ranges_.push_back({next, last_code});
    return s;
  }
  code_set operator&(const code_set& o) const { return ~(~*this | ~o); }
  const list& ranges() const { return ranges_; }

 private:
  void sort() {
    std::sort(ranges_.begin(), ranges_.end(), [](range a, range b) { return a.from < b.from; });
    std::size_t kept = 0;
    for (const range r : ranges_)
      if (kept > 0 && r.from <= ranges_[kept - 1].to + 1)
        ranges_[kept - 1].to = std::max(ranges_[kept - 1].to, r.to);
      else
        ranges_[kept++] = r;
    ranges_.resize(kept);
  }
  list ranges_;
};

// A code_set as pages of 256 bits, so that a test is two loads; equal pages are stored once.
class code_table {
 public:
  code_table() = default;
  explicit code_table(const code_set& s) : page_(0x1100) {
    std::size_t next = 0;
    const auto& all = s.ranges();
    for (std::uint32_t p = 0; p < 0x1100; ++p) {
      page bits{};
      const std::uint32_t first = p * 256, last = first + 255;
      while (next < all.size() && all[next].to < first) ++next;
      for (std::size_t k = next; k < all.size() && all[k].from <= last; ++k)
        for (std::uint32_t c = std::max(first, all[k].from); c <= std::min(last, all[k].to); ++c)
          bits[c % 256 / 64] |= std::uint64_t{1} << (c % 64);
      const auto at = std::find(pages_.begin(), pages_.end(), bits);
      page_[p] = static_cast<std::uint16_t>(at - pages_.begin());
      if (at == pages_.end()) pages_.push_back(bits);
    }
  }
  bool has(std::uint32_t c) const { return (pages_[page_[c >> 8U]][c % 256 / 64] >> (c % 64) & 1U) != 0; }

 private:
  using page = std::array<std::uint64_t, 4>;
  std::vector<std::uint16_t> page_;
  std::vector<page> pages_;
};

namespace unicode {

// Characters whose general category begins with `prefix`: "Lu", "L".
inline code_set category(std::string_view prefix) {
  code_set::list rows;
  for (const auto& r : categories)
    if (std::string_view(category_names[r[2]]).starts_with(prefix)) rows.push_back({r[0], r[1]});
  code_set s = code_set::of(std::move(rows));
  if (prefix != "C" && prefix != "Cn") return s;
  code_set::list assigned;
  for (const auto& r : categories) assigned.push_back({r[0], r[1]});
  return s | ~code_set::of(std::move(assigned));
}
inline const code_set& spaces() {  // White_Space, which is \s in regular expressions and is_whitespace in Rust
  static const code_set s = [] {
    constexpr std::uint32_t all[][2] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                        {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                        {0x205F, 0x205F}, {0x3000, 0x3000}};
    return code_set::of(all);
  }();
  return s;
}
inline code_set alphabetic() { return category("L") | category("Nl") | code_set::of(alphabetic_marks); }
// \w as Unicode's annex 18 has it, but for the joiners U+200C and U+200D, which are in Rust's \w alone.
inline code_set words_of_both() { return alphabetic() | category("M") | category("Nd") | category("Pc"); }
// \w of Oniguruma, which adds the numbers of Latin-1 (², ³, ¹, ¼, ½, ¾).
inline code_set word_characters() {
  constexpr std::uint32_t latin_numbers[][2] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
  return words_of_both() | code_set::of(latin_numbers);
}
inline code_set rust_word_characters() { return words_of_both() | code_set(0x200C, 0x200D); }

// The property that \p{name} names, in any spelling of case, spaces, '-' and '_'; empty for one that is not known.
inline std::optional<code_set> property(std::string_view name) {
  std::string key;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') key += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  for (const char* category_name : category_names) {
    std::string lower = category_name;
    lower[0] = static_cast<char>(lower[0] + ('a' - 'A'));
    if (key == lower) return category(category_name);
    if (key.size() == 1 && key[0] == lower[0]) return category(std::string_view(category_name).substr(0, 1));
  }
  if (key == "lc") return category("Lu") | category("Ll") | category("Lt");
  constexpr const char* long_names[][2] = {{"letter", "L"},
                                           {"mark", "M"},
                                           {"number", "N"},
                                           {"punctuation", "P"},
                                           {"symbol", "S"},
                                           {"separator", "Z"},
                                           {"other", "C"},
                                           {"uppercaseletter", "Lu"},
                                           {"lowercaseletter", "Ll"},
                                           {"titlecaseletter", "Lt"},
                                           {"modifierletter", "Lm"},
                                           {"otherletter", "Lo"},
                                           {"nonspacingmark", "Mn"},
                                           {"spacingmark", "Mc"},
                                           {"decimalnumber", "Nd"},
                                           {"digit", "Nd"}};
  for (const auto& n : long_names)
    if (key == n[0]) return category(n[1]);
  if (key == "alphabetic" || key == "alpha") return alphabetic();
  if (key == "alnum") return alphabetic() | category("Nd");
  if (key == "space" || key == "whitespace") return spaces();
  if (key == "word") return word_characters();
  if (key == "han") return code_set::of(script_han);
  if (key == "hiragana") return code_set::of(script_hiragana);
  if (key == "katakana") return code_set::of(script_katakana);
  if (key == "hangul") return code_set::of(script_hangul);
  if (key == "latin") return code_set::of(script_latin);
  if (key == "cyrillic") return code_set::of(script_cyrillic);
  if (key == "greek") return code_set::of(script_greek);
  if (key == "arabic") return code_set::of(script_arabic);
  if (key == "hebrew") return code_set::of(script_hebrew);
  if (key == "thai") return code_set::of(script_thai);
  if (key == "devanagari") return code_set::of(script_devanagari);
  return std::nullopt;
}

// Distance from c to the character that a table of runs (from, to, step, distance) maps it to, modulo 2^32; 0 if none.
template <std::size_t N> std::uint32_t distance_in(const std::uint32_t (&runs)[N][4], std::uint32_t c) {
  const auto* const at = std::lower_bound(std::begin(runs), std::end(runs), c,
                                          [](const std::uint32_t(&r)[4], std::uint32_t code) { return r[1] < code; });
  return at != std::end(runs) && (*at)[0] <= c && (c - (*at)[0]) % (*at)[2] == 0 ? (*at)[3] : 0;
}
// The set with all characters that differ from its members in case alone (simple case folding).
inline code_set case_closed(const code_set& s) {
  static const std::vector<std::array<std::uint32_t, 2>> pairs = [] {  // a character of the folding, and the other
    std::vector<std::array<std::uint32_t, 2>> all;
    for (const auto& r : fold_runs)
      for (std::uint32_t c = r[0]; c <= r[1]; c += r[2]) all.push_back({c + r[3], c});
    std::sort(all.begin(), all.end());
    return all;
  }();
  code_set::list more;
  for (std::size_t i = 0, end = 0; i < pairs.size(); i = end) {
    bool any = s.has(pairs[i][0]);
    for (end = i; end < pairs.size() && pairs[end][0] == pairs[i][0]; ++end) any = any || s.has(pairs[end][1]);
    if (!any) continue;
    more.push_back({pairs[i][0], pairs[i][0]});
    for (std::size_t k = i; k < end; ++k) more.push_back({pairs[k][1], pairs[k][1]});
  }
  return s | code_set::of(std::move(more));
}

}  // namespace unicode

}  // namespace graft::io::hf
