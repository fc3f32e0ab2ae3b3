// SPDX-License-Identifier: Apache-2.0
// Cutting text into the pieces that byte pairs are merged in, as three families of tokenizers do it. Their files hold
// one of these regular expressions, which are recognised as a whole and matched by hand:
//     gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//     llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|...
//     qwen2   the same with \p{N}
#pragma once
#include <graft/io/hf/unicode.h>

#include <optional>

namespace graft::io::hf {

enum class split_rule : unsigned char { gpt2, llama3, qwen2 };

inline std::optional<split_rule> split_rule_for(std::string_view regex) {
  if (regex == R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)") return split_rule::gpt2;
  constexpr std::string_view begin = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})",
                             end = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (regex.size() < begin.size() + end.size() || !regex.starts_with(begin) || !regex.ends_with(end)) return {};
  const std::string_view times = regex.substr(begin.size(), regex.size() - begin.size() - end.size());
  if (times == "{1,3}") return split_rule::llama3;
  return times.empty() ? std::optional(split_rule::qwen2) : std::nullopt;
}

class word_splitter {
 public:
  word_splitter(std::string_view text, split_rule rule) : s_(text), rule_(rule) {}

  // The next piece; empty at the end.
  std::string_view next() {
    const std::size_t from = at_;
    at_ = end_of_piece();
    return s_.substr(from, at_ - from);
  }

 private:
  character peek(std::size_t i) const { return first_character(s_.substr(i)); }
  bool is(character c, unsigned classes) const { return c.bytes != 0 && (classes_[c.code] & classes) != 0; }
  static bool newline(character c) { return c.bytes != 0 && (c.code == '\r' || c.code == '\n'); }
  bool other(character c) const { return c.bytes != 0 && !is(c, is_letter | is_number | is_space); }
  template <class F> std::size_t while_true(std::size_t i, F test) const {
    for (character c = peek(i); test(c); c = peek(i)) i += c.bytes;
    return i;
  }

  std::size_t end_of_piece() const {
    const character c = peek(at_);
    if (c.bytes == 0) return at_;
    if (const std::size_t n = contraction(); n != 0) return at_ + n;
    return rule_ == split_rule::gpt2 ? gpt2(c) : llama3(c);
  }
  // Length of 's, 't, 're, 've, 'm, 'll or 'd; without case the long s of old prints is an s too.
  std::size_t contraction() const {
    if (s_[at_] != '\'') return 0;
    const auto letter = [&](std::size_t i) {
      const char c = i < s_.size() ? s_[i] : '\0';
      return rule_ != split_rule::gpt2 && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char a = letter(at_ + 1), b = letter(at_ + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return rule_ != split_rule::gpt2 && s_.substr(at_ + 1).starts_with("\xC5\xBF") ? 3 : 0;
  }
  std::size_t run(std::size_t i, unsigned classes) const {
    return while_true(i, [&](character c) { return is(c, classes); });
  }
  std::size_t others(std::size_t i) const {
    return while_true(i, [&](character c) { return other(c); });
  }

  std::size_t gpt2(character c) const {
    const std::size_t i = at_ + (c.code == ' ' ? 1 : 0);
    const character first = peek(i);
    if (is(first, is_letter)) return run(i, is_letter);
    if (is(first, is_number)) return run(i, is_number);
    if (other(first)) return others(i);
    return spaces();
  }
  std::size_t llama3(character c) const {
    if (is(c, is_letter)) return run(at_, is_letter);
    if (is(c, is_number)) {
      std::size_t i = at_ + c.bytes;
      for (int more = rule_ == split_rule::llama3 ? 2 : 0; more > 0 && is(peek(i), is_number); --more)
        i += peek(i).bytes;
      return i;
    }
    if (!newline(c) && is(peek(at_ + c.bytes), is_letter)) return run(at_ + c.bytes, is_letter);
    const std::size_t i = at_ + (c.code == ' ' ? 1 : 0);
    if (other(peek(i))) return while_true(others(i), newline);
    return spaces();
  }
  // All spaces up to the last newline among them; else all but the last, which belongs to what follows.
  std::size_t spaces() const {
    std::size_t end = at_, last = at_, newlines = at_;
    for (character c = peek(end); is(c, is_space); c = peek(end)) {
      last = end, end += c.bytes;
      if (newline(c)) newlines = end;
    }
    if (rule_ != split_rule::gpt2 && newlines != at_) return newlines;
    return end == s_.size() || last == at_ ? end : last;
  }

  std::string_view s_;
  split_rule rule_;
  std::size_t at_ = 0;
  const unsigned char* classes_ = char_classes();
};

}  // namespace graft::io::hf
