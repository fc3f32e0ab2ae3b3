// SPDX-License-Identifier: Apache-2.0
// Regular expressions in Python's syntax for module paths, with a matcher that takes bounded time: patterns come from
// downloaded files. Instead of backtracking, each node maps the set of positions where it may begin to the set of
// positions where it may end. That is exact for full matches, needs no recursion over the text, and cannot explode on
// (a+)+$. Supported, in ASCII:
//     . [..] ( ) (?: ) (?P<n> ) | * + ? {m,n} and lazy forms, ^ $ \A \Z \b \B \d \w \s, look-ahead and look-behind
#pragma once
#include <graft/io/error_text.h>

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace graft::io {

// A set of bytes: a character class. It is not a std::bitset because two bitset sizes in one file make g++ 12 warn,
// wrongly, about array bounds.
struct char_set {
  std::uint64_t words[4]{};

  constexpr bool has(char c) const {
    const unsigned k = static_cast<unsigned char>(c);
    return (words[k / 64] >> (k % 64) & 1) != 0;
  }
  constexpr void add(char c) {
    const unsigned k = static_cast<unsigned char>(c);
    words[k / 64] |= std::uint64_t{1} << (k % 64);
  }
  constexpr char_set operator~() const { return {{~words[0], ~words[1], ~words[2], ~words[3]}}; }
  constexpr char_set& operator|=(const char_set& o) {
    for (int i = 0; i < 4; ++i) words[i] |= o.words[i];
    return *this;
  }
};

constexpr char_set chars_where(auto test) {
  char_set s;
  for (int c = 0; c < 128; ++c)
    if (test(static_cast<char>(c))) s.add(static_cast<char>(c));
  return s;
}
constexpr char_set only_char(char c) {
  char_set s;
  s.add(c);
  return s;
}

inline constexpr std::size_t longest_pattern = 16384, longest_path = 512;
inline constexpr int deepest_group = 32, most_matching_steps = 1'000'000;
using position_set = std::bitset<longest_path + 1>;

struct pattern_node {
  enum class form { chars, sequence, choice, repeat, begin, end, edge, no_edge, ahead, not_ahead, behind, not_behind };
  form kind = form::sequence;
  char_set chars{};
  int least = 0, most = 0;  // bounds of a repeat; most < 0 is unbounded
  std::vector<int> children{};
};

struct pattern {
  std::vector<pattern_node> nodes;
  int root;
};

inline bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

struct pattern_matcher {
  using form = pattern_node::form;
  const pattern& p;
  std::string_view path;
  int steps_left = most_matching_steps;

  bool at_edge(std::size_t i) const { return (i > 0 && is_word(path[i - 1])) != (i < path.size() && is_word(path[i])); }
  position_set filtered(const position_set& from, auto keep) {
    position_set out;
    for (std::size_t i = 0; i <= path.size(); ++i)
      if (from[i] && keep(i)) out.set(i);
    return out;
  }
  position_set only(std::size_t i) const { return position_set{}.set(i); }

  position_set repeat(const pattern_node& n, position_set now) {
    for (int i = 0; i < n.least; ++i) {
      const position_set next = run(n.children[0], now);
      if (next == now) break;
      now = next;
    }
    for (int i = n.least; (n.most < 0 || i < n.most) && steps_left > 0; ++i) {
      const position_set more = now | run(n.children[0], now);
      if (more == now) break;
      now = more;
    }
    return now;
  }
  position_set run(int index, const position_set& from) {
    if (--steps_left <= 0 || from.none()) return {};
    const pattern_node& n = p.nodes[static_cast<std::size_t>(index)];
    const auto child_from = [&](std::size_t i) { return run(n.children[0], only(i)); };
    const auto child_to = [&](std::size_t i) {
      for (std::size_t k = 0; k <= i; ++k)
        if (run(n.children[0], only(k))[i]) return true;
      return false;
    };
    position_set out;
    switch (n.kind) {
      case form::chars:
        for (std::size_t i = 0; i < path.size(); ++i)
          if (from[i] && n.chars.has(path[i])) out.set(i + 1);
        return out;
      case form::sequence:
        out = from;
        for (const int c : n.children) out = run(c, out);
        return out;
      case form::choice:
        for (const int c : n.children) out |= run(c, from);
        return out;
      case form::repeat: return repeat(n, from);
      case form::begin: return from & only(0);
      case form::end: return from & only(path.size());
      case form::edge: return filtered(from, [&](std::size_t i) { return at_edge(i); });
      case form::no_edge: return filtered(from, [&](std::size_t i) { return !at_edge(i); });
      case form::ahead: return filtered(from, [&](std::size_t i) { return child_from(i).any(); });
      case form::not_ahead: return filtered(from, [&](std::size_t i) { return child_from(i).none(); });
      case form::behind: return filtered(from, child_to);
      case form::not_behind: return filtered(from, [&](std::size_t i) { return !child_to(i); });
    }
    return out;
  }
};

inline result<bool> full_match(const pattern& p, std::string_view path) {
  if (path.size() > longest_path)
    return fail("module path ", in_quotes(path), " has ", number(path.size()), " characters, expected at most ",
                number(longest_path));
  pattern_matcher m{p, path};
  const bool hit = m.run(p.root, m.only(0))[path.size()];
  if (m.steps_left <= 0)
    return fail("matching a regular expression against ", in_quotes(path), " takes too many steps");
  return hit;
}

}  // namespace graft::io
