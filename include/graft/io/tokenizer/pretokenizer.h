// SPDX-License-Identifier: Apache-2.0
// Pretokenizers: split normalized text into the words that the model encodes one by one. Steps follow one another, and
// each splits the pieces of the step before it: Split, Digits, Punctuation, Whitespace, WhitespaceSplit by a pattern or
// a set of characters; Metaspace, which writes spaces as ▁; ByteLevel, which writes bytes as characters.
#pragma once
#include <graft/io/tokenizer/normalizer.h>
#include <graft/io/tokenizer/unicode.h>

#include <optional>

namespace graft::io::hf {

// The byte alphabet of byte-level BPE: tokenizer.json writes every byte as a printable character, the byte itself or a
// character from U+0100 on (bytes_to_unicode in GPT-2's encoder.py).

// Maps a byte to the character that represents it; printable Latin-1 represents itself.
inline const std::vector<std::uint32_t>& byte_characters() {
  static const std::vector<std::uint32_t> all = [] {
    std::vector<std::uint32_t> table;
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool prints = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
      table.push_back(prints ? b : next++);
    }
    return table;
  }();
  return all;
}
// Maps text in this alphabet back to bytes; empty if a character represents no byte.
inline std::optional<std::string> bytes_written_as(std::string_view token) {
  static const std::vector<int> back = [] {
    std::vector<int> table(0x200, -1);
    for (std::size_t b = 0; b < 256; ++b) table[byte_characters()[b]] = static_cast<int>(b);
    return table;
  }();
  std::string out;
  for (character c = first_character(token); c.bytes != 0; c = first_character(token)) {
    if (c.code >= back.size() || back[c.code] < 0) return std::nullopt;
    out += static_cast<char>(back[c.code]);
    token.remove_prefix(c.bytes);
  }
  return out;
}

// What becomes of the matches that a text is split at, as tokenizer.json names it.
enum class split_behavior : unsigned char { removed, isolated, merged_with_previous, merged_with_next, contiguous };
enum class prepend_scheme : unsigned char { always, first, never };

struct pretokenizer_step {
  enum class kind : unsigned char { split, metaspace, byte_level } what = kind::split;
  split_behavior behavior = split_behavior::isolated;
  bool invert = false, splits = true;  // invert: the text between matches is the match; splits: Metaspace splits at ▁
  search_pattern pattern{};  // what split and ByteLevel with use_regex search for; not used if `characters` is set
  std::optional<code_table> characters{};         // splits at each of these characters
  prepend_scheme prefix = prepend_scheme::never;  // where Metaspace and ByteLevel (always or never) prepend a space
  std::string replacement = "\xE2\x96\x81";       // what Metaspace writes for a space
};

// Regular expressions that tokenizer.json does not spell out.
inline constexpr const char* byte_level_regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Whitespace uses \w+|[^\w\s]+ with Rust's \w, which has the joiners U+200C and U+200D, and not the numbers of Latin-1.
inline constexpr const char* whitespace_regex =
    R"([\w\x{200C}\x{200D}&&[^\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}]]+|[[^\w\s\x{200C}\x{200D}]\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}]+)";

class pretokenizer {
 public:
  explicit pretokenizer(const std::vector<pretokenizer_step>& steps) : steps_(steps), scratch_(steps.size()) {}

  // Calls word(w) for every word, in order; false if a regular expression took too many steps. `at_start` says whether
  // the piece is the beginning of the whole text, for prepend_scheme::first.
  template <class Word> bool split(std::string_view piece, bool at_start, Word word) {
    return piece.empty() || from(0, piece, at_start, word);
  }

 private:
  struct span {
    std::size_t from, to;
    bool match;
  };
  struct buffers {
    std::string text, mapped;
    std::vector<span> spans;
  };

  template <class Word> bool from(std::size_t k, std::string_view piece, bool at_start, Word& word) {
    using kind = pretokenizer_step::kind;
    if (k == steps_.size()) return word(piece), true;
    const pretokenizer_step& step = steps_[k];
    buffers& b = scratch_[k];
    if (step.what == kind::metaspace) {
      meta(step, piece, at_start, b);
      piece = b.text;
    } else if (step.what == kind::byte_level && step.prefix == prepend_scheme::always && !piece.starts_with(' ')) {
      b.text.assign(" ").append(piece);
      piece = b.text;
    }
    if (!cut(step, piece, b.spans)) return false;
    for (std::size_t i = 0; i < b.spans.size(); ++i) {
      const span s = b.spans[i];
      if (s.from == s.to) continue;
      std::string_view part = piece.substr(s.from, s.to - s.from);
      if (step.what == kind::byte_level) part = mapped(part, b.mapped);
      if (!from(k + 1, part, at_start && s.from == 0, word)) return false;
    }
    return true;
  }
  static void meta(const pretokenizer_step& step, std::string_view piece, bool at_start, buffers& b) {
    b.text.clear();
    const bool has_one = piece.starts_with(' ') || piece.starts_with(step.replacement);
    if (!has_one && (step.prefix == prepend_scheme::always || (step.prefix == prepend_scheme::first && at_start)))
      b.text = step.replacement;
    for (const char c : piece)
      if (c == ' ')
        b.text += step.replacement;
      else
        b.text += c;
  }
  static std::string_view mapped(std::string_view bytes, std::string& out) {
    const std::vector<std::uint32_t>& characters = byte_characters();
    out.clear();
    for (const char c : bytes) append_utf8(out, characters[static_cast<unsigned char>(c)]);
    return out;
  }

  // Splits a piece: matches and what is between them, joined or removed as the behavior says.
  static bool cut(const pretokenizer_step& step, std::string_view s, std::vector<span>& out) {
    out.clear();
    if (!step.splits) return out.push_back({0, s.size(), false}), true;
    std::size_t last = 0;
    bool ready = false, before = false;  // ready: the previous span may be extended; before: it was a match
    const auto put = [&](std::size_t from, std::size_t to, bool match) {
      match = match != step.invert;
      switch (step.behavior) {
        case split_behavior::removed:
          if (!match) out.push_back({from, to, match});
          return;
        case split_behavior::isolated: return out.push_back({from, to, match});
        case split_behavior::contiguous:
          if (ready && before == match)
            out.back().to = to;
          else
            out.push_back({from, to, match});
          break;
        case split_behavior::merged_with_previous:
          if (match && !before && ready)
            out.back().to = to;
          else
            out.push_back({from, to, match});
          break;
        case split_behavior::merged_with_next: out.push_back({from, to, match}); break;
      }
      ready = true, before = match;
    };
    const auto found = [&](std::size_t from, std::size_t to) {
      if (from > last) put(last, from, false);
      put(from, to, true);
      last = to;
    };
    bool finished = true;
    if (step.characters) {
      for (std::size_t i = 0; i < s.size();) {
        const character c = first_character(s.substr(i));
        if (step.characters->has(c.code)) found(i, i + c.bytes);
        i += c.bytes;
      }
    } else {
      finished = step.pattern.for_each(s, found);
    }
    if (last < s.size()) put(last, s.size(), false);
    if (step.behavior == split_behavior::merged_with_next) join_with_next(out);
    return finished;
  }
  // A match joins the span after it, unless that is a match itself.
  static void join_with_next(std::vector<span>& spans) {
    std::size_t kept = spans.size();
    bool before = false;
    for (std::size_t i = spans.size(); i-- > 0;) {
      const span s = spans[i];
      if (s.match && !before && kept < spans.size())
        spans[kept].from = s.from;
      else
        spans[--kept] = s;
      before = s.match;
    }
    spans.erase(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(kept));
  }

  const std::vector<pretokenizer_step>& steps_;
  std::vector<buffers> scratch_;
};

}  // namespace graft::io::hf
