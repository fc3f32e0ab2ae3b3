// SPDX-License-Identifier: Apache-2.0
// Recursive-descent parser from Python's regular expression syntax to the nodes of regex/pattern.h:
//     choice = sequence ('|' sequence)*      sequence = (atom quantifier?)*
//     atom   = char | set | escape | '(' choice ')' | '^' | '$'
// Unsupported syntax (back references, inline flags, possessive quantifiers, …) is an error, never another meaning.
#pragma once
#include <graft/io/regex/pattern.h>

namespace graft::io {

struct pattern_parser {
  using form = pattern_node::form;
  std::string_view in;
  std::size_t at = 0;
  int depth = 0;
  std::vector<pattern_node> nodes{};
  text problem{};

  template <class... Parts> int bad(const Parts&... parts) {
    if (problem.empty()) ((problem << "at character " << number(at + 1) << ": ") << ... << parts);
    return 0;
  }
  bool more() const { return at < in.size() && problem.empty(); }
  bool next_is(char c) const { return more() && in[at] == c; }
  bool take(std::string_view s) {
    if (!in.substr(at).starts_with(s)) return false;
    at += s.size();
    return true;
  }
  int add(form kind, std::vector<int> children = {}) {
    nodes.push_back({kind, {}, 0, 0, std::move(children)});
    return static_cast<int>(nodes.size()) - 1;
  }
  int add_chars(const char_set& s) {
    const int n = add(form::chars);
    nodes.back().chars = s;
    return n;
  }

  int choice() {
    std::vector<int> options{sequence()};
    while (next_is('|')) ++at, options.push_back(sequence());
    return options.size() == 1 ? options[0] : add(form::choice, std::move(options));
  }
  int sequence() {
    std::vector<int> parts;
    while (more() && in[at] != '|' && in[at] != ')') {
      const int a = atom();
      parts.push_back(quantified(a));
    }
    return add(form::sequence, std::move(parts));
  }
  int atom() {
    const char c = in[at];
    int ignored = 0;
    if (static_cast<unsigned char>(c) >= 128) return bad("only ASCII is supported");
    if (c == '*' || c == '+' || c == '?' || counted(ignored, ignored)) return bad("there is nothing to repeat");
    ++at;
    if (c == '(') return group();
    if (c == '[') return add_chars(set());
    if (c == '.') return add_chars(~only_char('\n'));
    if (c == '^') return add(form::begin);
    if (c == '$') return add(form::end);
    if (c != '\\') return add_chars(only_char(c));
    if (take("A")) return add(form::begin);
    if (take("Z")) return add(form::end);
    if (take("b")) return add(form::edge);
    if (take("B")) return add(form::no_edge);
    return add_chars(escape());
  }
  int group() {
    form look = form::sequence;
    if (depth >= deepest_group) return bad("groups are nested deeper than ", deepest_group);
    if (take("?="))
      look = form::ahead;
    else if (take("?!"))
      look = form::not_ahead;
    else if (take("?<="))
      look = form::behind;
    else if (take("?<!"))
      look = form::not_behind;
    else if (take("?P<"))
      while (more() && in[at++] != '>') {}
    else if (!take("?:") && next_is('?'))
      return bad("this kind of group is not supported");
    ++depth;
    const int inner = choice();
    --depth;
    if (!take(")")) return bad("a ')' is missing");
    return look == form::sequence ? inner : add(look, {inner});
  }
  int quantified(int a) {
    int least = 0, most = -1;
    if (!more()) return a;
    if (take("+"))
      least = 1;
    else if (take("?"))
      most = 1;
    else if (!take("*") && !counted(least, most))
      return a;
    if (most >= 0 && least > most) return bad("a repetition ends before it begins");
    take("?");  // lazy and greedy quantifiers give the same full matches
    int ignored = 0;
    if (next_is('+') || next_is('*') || next_is('?') || counted(ignored, ignored))
      return bad("two quantifiers in a row are not supported");
    const int n = add(form::repeat, {a});
    nodes.back().least = least;
    nodes.back().most = most;
    return n;
  }
  // Reads {m}, {m,}, {,n} or {m,n}; any other '{' is an ordinary character, as in Python.
  bool counted(int& least, int& most) {
    const std::size_t start = at;
    const auto digits = [&](int& out) {
      const std::size_t first = at;
      for (out = 0; more() && in[at] >= '0' && in[at] <= '9'; ++at) out = std::min(out * 10 + (in[at] - '0'), 9999);
      return at > first;
    };
    if (!take("{")) return false;
    const bool low = digits(least), comma = take(",");
    const bool high = comma && digits(most);
    if (!take("}") || (!low && !comma)) return at = start, least = 0, most = -1, false;
    if (!high) most = comma ? -1 : least;
    if (least > 1000 || most > 1000) bad("a repetition count is larger than 1000");
    return true;
  }
  char_set escape() {
    if (!more()) return bad("the pattern ends after a backslash"), char_set{};
    const char c = in[at++];
    const auto digit = [](char x) { return x >= '0' && x <= '9'; };
    const auto space = [](char x) { return x == ' ' || (x >= '\t' && x <= '\r'); };
    switch (c) {
      case 'd': return chars_where(digit);
      case 'D': return ~chars_where(digit);
      case 'w': return chars_where(is_word);
      case 'W': return ~chars_where(is_word);
      case 's': return chars_where(space);
      case 'S': return ~chars_where(space);
      case 't': return only_char('\t');
      case 'n': return only_char('\n');
      default: break;
    }
    if (digit(c)) bad("back references are not supported");
    if (is_word(c) && c != '_') bad("the escape \\", c, " is not supported");
    return only_char(c);
  }
  char_set set() {
    char_set out;
    const bool inverted = take("^");
    for (bool first = true; more() && (first || in[at] != ']'); first = false) {
      const char low = in[at++];
      if (static_cast<unsigned char>(low) >= 128) bad("only ASCII is supported");
      out |= low == '\\' ? escape() : only_char(low);
      if (!next_is('-') || at + 1 >= in.size() || in[at + 1] == ']') continue;
      const char from = in[at - 1], to = in[at + 1];
      const bool class_name = low == '\\' && is_word(from);
      if (class_name || to == '\\' || static_cast<unsigned char>(to) >= 128 || to < from)
        bad("this range of characters is not supported");
      at += 2;
      out |= chars_where([&](char c) { return from <= c && c <= to; });
    }
    if (!take("]")) bad("a ']' is missing");
    return inverted ? ~out : out;
  }
};

inline result<pattern> parse_pattern(std::string_view regex) {
  return guarded("regular expression", [&]() -> result<pattern> {
    if (regex.size() > longest_pattern)
      return fail("regular expression ", in_quotes(regex), " has ", number(regex.size()),
                  " characters, expected at most ", number(longest_pattern));
    pattern_parser parser{regex};
    const int root = parser.choice();
    if (parser.at < regex.size()) parser.bad("this ')' closes nothing");
    if (!parser.problem.empty()) return fail("regular expression ", in_quotes(regex), ", ", parser.problem);
    return pattern{std::move(parser.nodes), root};
  });
}

inline result<bool> full_match(std::string_view regex, std::string_view path) {
  const result<pattern> p = parse_pattern(regex);
  if (!p) return p.failure();
  return full_match(*p, path);
}

}  // namespace graft::io
