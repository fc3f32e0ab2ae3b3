// SPDX-License-Identifier: Apache-2.0
// Tokens of a chat template, with Jinja's whitespace rules as transformers sets them: trim_blocks removes the newline
// after a block tag or comment, lstrip_blocks the spaces before one at the start of a line; `-` strips all whitespace
// on its side, `+` switches both rules off, and one newline at the end of the template is dropped.
#pragma once
#include <graft/io/chat_template/value.h>

#include <charconv>

namespace graft::io::jinja {

enum class token_kind : unsigned char {
  data,
  print_begin,
  print_end,
  block_begin,
  block_end,
  name,
  text,
  whole,
  real,
  sign,
  end
};
struct token {
  token_kind what = token_kind::end;
  int line = 1;
  std::string text;
  std::int64_t whole = 0;
  double real = 0;
};

// Bytes of the white space character that s begins with, as str.isspace and \s have it in Python; 0 for others.
inline std::size_t space_length(std::string_view s) {
  if (s.empty()) return 0;
  const auto c = static_cast<unsigned char>(s[0]);
  if (c < 0x80) return c == ' ' || (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x1F) ? 1 : 0;
  for (const std::string_view two : {"\xC2\x85", "\xC2\xA0"})
    if (s.starts_with(two)) return 2;
  for (const std::string_view three :
       {"\xE1\x9A\x80", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"})
    if (s.starts_with(three)) return 3;
  return s.size() >= 3 && s.starts_with("\xE2\x80") && static_cast<unsigned char>(s[2]) >= 0x80 &&
                 static_cast<unsigned char>(s[2]) <= 0x8A
             ? 3
             : 0;
}
inline std::string_view strip_left(std::string_view s) {
  while (const std::size_t n = space_length(s)) s.remove_prefix(n);
  return s;
}
// The start of the last character of s.
inline std::size_t last_character(std::string_view s) {
  std::size_t i = s.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(s[i]) & 0xC0U) == 0x80U) --i;
  return i;
}
inline std::string_view strip_right(std::string_view s) {
  while (!s.empty()) {
    const std::size_t i = last_character(s);
    if (space_length(s.substr(i)) != s.size() - i) break;
    s = s.substr(0, i);
  }
  return s;
}

class lexer {
 public:
  lexer(std::string_view source, state& s) : s_(s) {
    in_.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
      in_ += source[i] == '\r' ? '\n' : source[i];
    }
    if (in_.ends_with('\n')) in_.pop_back();
  }
  // False after an error.
  bool run(std::vector<token>& out) {
    out_ = &out;
    while (at_ < in_.size() && !s_.failed) root();
    add(token_kind::end, "");
    return !s_.failed;
  }

 private:
  bool stop(std::string why) {
    s_.line = line_;
    s_.stop(std::move(why));
    return false;
  }
  std::string_view rest() const { return std::string_view(in_).substr(at_); }
  void add(token_kind what, std::string text) { out_->push_back({what, line_, std::move(text), 0, 0}); }
  void advance(std::size_t n) {
    n = std::min(n, in_.size() - at_);
    line_ += static_cast<int>(std::count(in_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         in_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
    if (n > 0) line_start_ = in_[at_ - 1] == '\n';
  }
  void skip_space() { advance(rest().size() - strip_left(rest()).size()); }
  // After a closing tag, whose first character is its sign: `-` strips, `+` keeps, else trim_blocks drops a newline.
  void close(std::size_t bytes, bool trim) {
    const char sign = in_[at_];
    advance(bytes);
    if (sign == '-')
      skip_space();
    else if (sign != '+' && trim && at_ < in_.size() && in_[at_] == '\n')
      advance(1);
  }
  // Length of the closing tag that the text at i begins with, with its sign; 0 where there is none.
  std::size_t closing(std::size_t i, std::string_view tag, bool plus) const {
    const std::string_view s = std::string_view(in_).substr(std::min(i, in_.size()));
    if (s.starts_with(tag)) return 2;
    return !s.empty() && (s[0] == '-' || (plus && s[0] == '+')) && s.substr(1).starts_with(tag) ? 3 : 0;
  }
  // Length of `{%`, a name and the space after it at i, if a closing tag follows, which begins at `end_tag`; else 0.
  std::size_t tag_named(std::size_t i, std::string_view name, std::size_t& end_tag) const {
    const std::string_view all = in_;
    std::string_view s = all.substr(i);
    if (!s.starts_with("{%")) return 0;
    s.remove_prefix(2);
    if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
    s = strip_left(s);
    if (!s.starts_with(name)) return 0;
    s = strip_left(s.substr(name.size()));
    const std::size_t at = all.size() - s.size();
    end_tag = at;
    return closing(at, "%}", true) != 0 ? at - i : 0;
  }
  char sign_at(std::size_t i) const { return i < in_.size() && (in_[i] == '-' || in_[i] == '+') ? in_[i] : '\0'; }
  // Adds the text before a tag, stripped as the tag's sign and lstrip_blocks say.
  void data(std::size_t until, char sign, bool is_print) {
    const std::string_view text = std::string_view(in_).substr(at_, until - at_);
    std::string_view kept = text;
    if (sign == '-') {
      kept = strip_right(text);
    } else if (sign != '+' && !is_print) {
      const std::size_t newline = text.rfind('\n'), from = newline == text.npos ? 0 : newline + 1;
      if ((from > 0 || line_start_) && from < text.size() && strip_left(text.substr(from)).empty())
        kept = text.substr(0, from);
    }
    if (!kept.empty()) add(token_kind::data, std::string(kept));
    advance(text.size());
  }
  void root() {
    std::size_t i = in_.find('{', at_);
    while (i != in_.npos && (i + 1 == in_.size() || std::string_view("%{#").find(in_[i + 1]) == std::string_view::npos))
      i = in_.find('{', i + 1);
    if (i == in_.npos) {
      add(token_kind::data, std::string(rest()));
      return advance(rest().size());
    }
    const char opened = in_[i + 1], sign = sign_at(i + 2);
    data(i, sign, opened == '{');
    std::size_t end_tag = 0;
    if (opened == '%' && tag_named(at_, "raw", end_tag) != 0 && in_[end_tag] != '+') return raw(end_tag);
    advance(sign == '\0' ? 2 : 3);
    if (opened == '#') return comment();
    add(opened == '%' ? token_kind::block_begin : token_kind::print_begin, "");
    code(opened == '%' ? "%}" : "}}", opened == '%');
  }
  void comment() {
    const std::size_t i = in_.find("#}", at_);
    if (i == in_.npos) {
      stop("a comment has no end, expected #}");
      return;
    }
    const std::size_t from = i > at_ && (in_[i - 1] == '-' || in_[i - 1] == '+') ? i - 1 : i;
    advance(from - at_);
    close(closing(at_, "#}", true), true);
  }
  void raw(std::size_t end_tag) {
    advance(end_tag - at_);
    close(closing(at_, "%}", true), false);
    for (std::size_t i = in_.find("{%", at_); i != in_.npos; i = in_.find("{%", i + 1)) {
      if (!s_.work()) return;
      std::size_t end = 0;
      if (tag_named(i, "endraw", end) == 0) continue;
      data(i, sign_at(i + 2), false);
      advance(end - at_);
      return close(closing(at_, "%}", true), true);
    }
    stop("a raw block has no end, expected {% endraw %}");
  }
  // Reads the tokens of a tag up to its end.
  void code(std::string_view end, bool is_block) {
    std::string open;
    while (!s_.failed) {
      if (open.empty())
        if (const std::size_t n = closing(at_, end, is_block)) {
          add(is_block ? token_kind::block_end : token_kind::print_end, "");
          return close(n, is_block);
        }
      if (at_ >= in_.size()) {
        stop(open.empty() ? "a tag has no end, expected " + std::string(end)
                          : "a bracket has no end, expected '" + open.substr(open.size() - 1) + "'");
        return;
      }
      if (space_length(rest()) != 0)
        skip_space();
      else if (!number() && !name() && !quoted() && !sign(open))
        stop("unexpected character " + std::string(in_quotes(rest().substr(0, 1)).c_str()));
    }
  }
  static bool digit(char c) { return c >= '0' && c <= '9'; }
  static bool letter(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  char peek(std::size_t i) const { return i < in_.size() ? in_[i] : '\0'; }
  // Digits with single underscores between them, from i; returns their end, or i.
  std::size_t digits(std::size_t i) const {
    if (!digit(peek(i))) return i;
    while (digit(peek(i)) || (peek(i) == '_' && digit(peek(i + 1)))) ++i;
    return i;
  }
  bool number() {
    if (!digit(peek(at_))) return false;
    const std::size_t whole_end = digits(at_);
    std::size_t end = whole_end;
    const bool after_dot = at_ > 0 && in_[at_ - 1] == '.';
    if (!after_dot && peek(end) == '.' && digits(end + 1) != end + 1) end = digits(end + 1);
    if (!after_dot && (peek(end) == 'e' || peek(end) == 'E')) {
      const std::size_t from = end + (peek(end + 1) == '+' || peek(end + 1) == '-' ? 2 : 1);
      if (digits(from) != from) end = digits(from);
    }
    const bool is_real = end != whole_end;
    int base = 10;
    std::string written;
    if (!is_real && in_[at_] == '0') {
      const char x = static_cast<char>(peek(at_ + 1) | 0x20);
      base = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
      end = at_ + (base == 10 ? 1 : 2);
      const std::string_view allowed = base == 16  ? "0123456789abcdefABCDEF_"
                                       : base == 8 ? "01234567_"
                                       : base == 2 ? "01_"
                                                   : "0_";
      while (end < in_.size() && allowed.find(in_[end]) != allowed.npos) ++end;
    }
    for (std::size_t i = at_ + (base == 10 ? 0 : 2); i < end; ++i)
      if (in_[i] != '_') written += in_[i];
    token t{is_real ? token_kind::real : token_kind::whole, line_, written, 0, 0};
    const char *first = written.data(), *last = first + written.size();
    const auto read = is_real ? std::from_chars(first, last, t.real) : std::from_chars(first, last, t.whole, base);
    if (read.ec != std::errc{} || read.ptr != last) return stop("the number " + written + " does not fit 64 bits");
    out_->push_back(std::move(t));
    advance(end - at_);
    return true;
  }
  bool name() {
    std::size_t end = at_;
    while (letter(peek(end)) || (end > at_ && digit(peek(end)))) ++end;
    if (end == at_) return false;
    add(token_kind::name, in_.substr(at_, end - at_));
    advance(end - at_);
    return true;
  }
  bool sign(std::string& open) {
    for (const std::string_view two : {"**", "//", "==", "!=", ">=", "<="})
      if (rest().starts_with(two)) return add(token_kind::sign, std::string(two)), advance(2), true;
    const char c = in_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) return false;
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c)
        return stop(std::string("unexpected '") + c + "'" +
                    (open.empty() ? "" : ", expected '" + open.substr(open.size() - 1) + "'"));
      open.pop_back();
    }
    add(token_kind::sign, std::string(1, c));
    advance(1);
    return true;
  }
  bool quoted() {
    const char quote = in_[at_];
    if (quote != '\'' && quote != '"') return false;
    std::string out;
    std::size_t i = at_ + 1;
    for (; peek(i) != quote || i >= in_.size(); ++i) {
      if (i >= in_.size()) return stop("a string has no end");
      if (in_[i] != '\\') {
        out += in_[i];
      } else if (!escape(++i, out)) {
        return false;
      }
    }
    add(token_kind::text, std::move(out));
    advance(i + 1 - at_);
    return true;
  }
  // Python's escapes; i is at the character after the backslash and is left at the last one of the escape.
  bool escape(std::size_t& i, std::string& out) {
    constexpr std::string_view names = "\\'\"abfnrtv", meant = "\\'\"\a\b\f\n\r\t\v";
    if (i >= in_.size()) return stop("a string has no end");
    const char c = in_[i];
    if (const std::size_t k = names.find(c); k != names.npos) return out += meant[k], true;
    if (c == '\n') return true;
    std::uint32_t code = 0;
    if (c >= '0' && c <= '7') {
      std::size_t n = 0;
      for (; n < 3 && peek(i + n) >= '0' && peek(i + n) <= '7'; ++n)
        code = code * 8 + static_cast<std::uint32_t>(in_[i + n] - '0');
      return append_utf8(out, code), i += n - 1, true;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string_view hex = std::string_view(in_).substr(i + 1, n);
      if (hex.size() < n || std::from_chars(hex.data(), hex.data() + n, code, 16).ptr != hex.data() + n)
        return stop("the escape \\" + std::string(1, c) + " has too few hexadecimal digits");
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return stop("the escape \\" + std::string(1, c) + std::string(hex) + " is no character");
      return append_utf8(out, code), i += n, true;
    }
    if (c == 'N') return stop("the escape \\N is not supported, expected the character or \\u");
    // Other characters keep their backslash. A character of several bytes is taken by the caller, byte by byte.
    out += '\\', out += c;
    return true;
  }

  std::string in_;
  state& s_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<token>* out_ = nullptr;
};

}  // namespace graft::io::jinja
