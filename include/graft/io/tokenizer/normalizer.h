// SPDX-License-Identifier: Apache-2.0
// Normalizers: what tokenizer.json does to a text before it is split (Prepend, Replace, NFC, NFD, NFKC, NFKD,
// Lowercase, Strip, StripAccents), one step after the other.
#pragma once
#include <graft/io/tokenizer/normal_forms.h>
#include <graft/io/tokenizer/split_regex.h>

namespace graft::io::hf {

// What Replace and Split search for: a text, or a regular expression.
struct search_pattern {
  std::string literal;
  shared_regex regex;

  // Calls found(from, to) for each match; false if a regular expression took too many steps.
  template <class Found> bool for_each(std::string_view s, Found found) const {
    if (regex) return for_each_match(*regex, s, found);
    for (std::size_t at = s.find(literal); at != s.npos; at = s.find(literal, at + literal.size()))
      found(at, at + literal.size());
    return true;
  }
  // Writes s with `content` for each match to `out`; false as above.
  bool replace_all(std::string_view s, std::string_view content, std::string& out) const {
    out.clear();
    std::size_t last = 0;
    const bool finished = for_each(s, [&](std::size_t from, std::size_t to) {
      out.append(s.substr(last, from - last)).append(content);
      last = to;
    });
    out.append(s.substr(last));
    return finished;
  }
};

struct normalizer_step {
  enum class kind : unsigned char { prepend, replace, form, lowercase, strip, strip_accents } what = kind::form;
  normal_form form = normal_form::nfc;
  bool left = true, right = true;  // strip: the ends that are stripped
  std::string content{};           // prepend, replace: what is written
  search_pattern pattern{};        // of replace
};

inline std::string lowercase(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (character c = first_character(s); c.bytes != 0; c = first_character(s)) {
    if (c.code == 0x130)
      out += "i\xCC\x87";  // İ becomes i and a dot above
    else
      append_utf8(out, c.code + unicode::distance_in(lowercase_runs, c.code));
    s.remove_prefix(c.bytes);
  }
  return out;
}
inline std::string_view stripped(std::string_view s, bool left, bool right) {
  static const code_table space(unicode::spaces());
  while (left && !s.empty() && space.has(first_character(s).code)) s.remove_prefix(first_character(s).bytes);
  while (right && !s.empty()) {
    const std::size_t last = character_before(s, s.size());
    if (!space.has(first_character(s.substr(last)).code)) break;
    s = s.substr(0, last);
  }
  return s;
}
inline std::string without_accents(std::string_view s) {
  static const code_table marks(code_set::of(accents));
  std::string out;
  for (character c = first_character(s); c.bytes != 0; c = first_character(s)) {
    if (!marks.has(c.code)) out += s.substr(0, c.bytes);
    s.remove_prefix(c.bytes);
  }
  return out;
}

// Normalizes UTF-8; empty if a regular expression took too many steps.
inline std::optional<std::string> normalize(const std::vector<normalizer_step>& steps, std::string_view text) {
  using kind = normalizer_step::kind;
  std::string now(text), next;
  for (const normalizer_step& step : steps) {
    switch (step.what) {
      case kind::prepend:
        if (!now.empty()) now.insert(0, step.content);
        break;
      case kind::replace:
        if (!step.pattern.replace_all(now, step.content, next)) return std::nullopt;
        now.swap(next);
        break;
      case kind::form: now = normalized(step.form, now); break;
      case kind::lowercase: now = lowercase(now); break;
      case kind::strip: now = std::string(stripped(now, step.left, step.right)); break;
      case kind::strip_accents: now = without_accents(now); break;
    }
  }
  return now;
}

}  // namespace graft::io::hf
