// SPDX-License-Identifier: Apache-2.0
// Recursive-descent parser and compiler from Oniguruma's syntax to the steps of split_regex.h. Unsupported syntax is an
// error that quotes the pattern, never another meaning. Lengths, counts and nesting are bounded, because patterns come
// from downloaded files.
#pragma once
#include <graft/io/tokenizer/split_regex.h>

#include <limits>

namespace graft::io::hf {

inline constexpr std::size_t longest_split_regex = 16384, most_regex_steps = 20'000, most_regex_sets = 2'000;
inline constexpr int deepest_regex_group = 32;
inline constexpr std::uint32_t any_times = std::numeric_limits<std::uint32_t>::max();

struct regex_node {
  enum class form : unsigned char { set, sequence, choice, repeat, group, assertion } what = form::sequence;
  enum class greed : unsigned char { greedy, lazy, possessive } repetition = greed::greedy;
  // The step of assertions, and of groups that look around or are atomic.
  regex_step::kind step = regex_step::kind::done;
  code_set set{};
  std::uint32_t least = 0, most = 0;
  std::vector<std::size_t> children{};
};

struct regex_parser {
  using form = regex_node::form;
  using kind = regex_step::kind;
  std::string_view in;
  std::size_t at = 0;
  int depth = 0;
  bool ignore_case = false, dot_matches_newline = false;
  std::uint32_t last_letter = 0;  // the literal letter before this position, where case is ignored
  std::vector<regex_node> nodes{};
  text problem{};

  template <class... Parts> std::size_t bad(const Parts&... parts) {
    if (problem.empty()) ((problem << "at byte " << number(at + 1) << ": ") << ... << parts);
    return 0;
  }
  bool more() const { return at < in.size() && problem.empty(); }
  bool next_is(char c) const { return more() && in[at] == c; }
  bool take(std::string_view s) {
    if (!problem.empty() || !in.substr(at).starts_with(s)) return false;
    return at += s.size(), true;
  }
  std::size_t add(regex_node n) {
    if (nodes.size() > most_regex_steps) return bad("the pattern has too many parts");
    nodes.push_back(std::move(n));
    return nodes.size() - 1;
  }
  std::size_t add_set(code_set s) { return add({.what = form::set, .set = std::move(s)}); }
  std::size_t assertion(kind k) { return add({.what = form::assertion, .step = k}); }

  std::size_t choice() {
    std::vector<std::size_t> options{sequence()};
    while (next_is('|')) ++at, options.push_back(sequence());
    return options.size() == 1 ? options[0] : add({.what = form::choice, .children = std::move(options)});
  }
  std::size_t sequence() {
    std::vector<std::size_t> parts;
    last_letter = 0;
    while (more() && in[at] != '|' && in[at] != ')') {
      if (take("(?#")) {
        while (more() && in[at] != ')') ++at;
        if (!take(")")) bad("a ')' is missing");
        continue;
      }
      const std::size_t a = atom(parts.empty());
      if (problem.empty()) parts.push_back(quantified(a));
    }
    return add({.what = form::sequence, .children = std::move(parts)});
  }
  std::size_t atom(bool first) {
    const char c = in[at];
    if (c == '*' || c == '+' || c == '?') return bad("there is nothing to repeat");
    if (c == '(') return ++at, group(first);
    if (c == '[') return ++at, add_set(set());
    if (take(".")) return add_set(dot_matches_newline ? code_set(0, last_code) : ~code_set('\n', '\n'));
    if (take("^")) return assertion(kind::line_begin);
    if (take("$")) return assertion(kind::line_end);
    if (take("\\A")) return assertion(kind::begin);
    if (take("\\z")) return assertion(kind::end);
    if (take("\\Z")) return assertion(kind::end_or_newline);
    if (take("\\b")) return assertion(kind::word_edge);
    if (take("\\B")) return assertion(kind::no_word_edge);
    const std::uint32_t before = last_letter;
    last_letter = 0;
    if (c == '\\') {
      bool one = false;
      code_set s = escape(one);
      return add_set(ignore_case && one ? case_closed(s) : std::move(s));
    }
    const std::uint32_t code = literal();
    if (!ignore_case) return add_set(code_set(code, code));
    return cased(before, code), add_set(case_closed(code_set(code, code)));
  }
  // Oniguruma also takes ß for ss and ﬀ for ff where case is ignored. No tokenizer needs it, and it is not done here.
  void cased(std::uint32_t before, std::uint32_t code) {
    const auto lower = [](std::uint32_t c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; };
    const std::uint32_t a = lower(before), b = lower(code);
    if ((a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l')) || code == 0xDF ||
        code == 0x1E9E || code == 0x149 || code == 0x1F0 || code == 0x390 || code == 0x3B0 || code == 0x587 ||
        (code >= 0x1E96 && code <= 0x1E9A) || (code >= 0x1F50 && code <= 0x1FFF) || (code >= 0xFB00 && code <= 0xFB17))
      bad("letters that one character may stand for where case is ignored are not supported");
    last_letter = code;
  }
  std::uint32_t literal() {
    const character c = first_character(in.substr(at));
    at += c.bytes;
    return c.code;
  }
  std::size_t group(bool first) {
    if (depth >= deepest_regex_group) return bad("groups are nested deeper than ", deepest_regex_group);
    const bool case_before = ignore_case, dot_before = dot_matches_newline;
    std::optional<kind> special;
    if (take("?="))
      special = kind::ahead;
    else if (take("?!"))
      special = kind::not_ahead;
    else if (take("?<="))
      special = kind::behind;
    else if (take("?<!"))
      special = kind::not_behind;
    else if (take("?>"))
      special = kind::atomic;
    else if (take("?<"))
      while (more() && in[at++] != '>') {}
    else if (!take("?:") && take("?") && options(first))
      return add({});  // (?i) by itself: until the end of the group around it
    ++depth;
    const std::size_t inner = choice();
    --depth;
    ignore_case = case_before, dot_matches_newline = dot_before, last_letter = 0;
    if (problem.empty() && !take(")")) return bad("a ')' is missing");
    if (!special) return inner;
    regex_node n{.what = form::group, .step = *special, .children = {inner}};
    if (*special == kind::behind || *special == kind::not_behind) {
      const std::optional<std::uint32_t> length = fixed_length(inner);
      if (!length) return bad("a look-behind of varying length is not supported");
      n.least = *length;
    }
    return add(std::move(n));
  }
  // Reads i, m, -i, -m and ':' or ')'; true if it was ')'.
  bool options(bool first) {
    bool on = true;
    for (; more() && in[at] != ':' && in[at] != ')'; ++at)
      if (in[at] == '-')
        on = false;
      else if (in[at] == 'i')
        ignore_case = on;
      else if (in[at] == 'm')
        dot_matches_newline = on;
      else
        return bad("this kind of group is not supported"), false;
    if (take(":")) return false;
    if (!take(")")) return bad("a ')' is missing"), false;
    if (!first) bad("options in the middle of a group are not supported, write them at its begin");
    return true;
  }
  std::optional<std::uint32_t> fixed_length(std::size_t n) const {
    const regex_node& x = nodes[n];
    std::uint32_t sum = 0;
    switch (x.what) {
      case form::set: return 1;
      case form::assertion:
      case form::group: return x.step == kind::atomic ? fixed_length(x.children[0]) : 0U;
      case form::repeat: {
        const auto one = fixed_length(x.children[0]);
        return one && x.least == x.most ? std::optional(*one * x.least) : std::nullopt;
      }
      case form::choice:
        for (const std::size_t c : x.children)
          if (!fixed_length(c) || fixed_length(c) != fixed_length(x.children[0])) return std::nullopt;
        return fixed_length(x.children[0]);
      case form::sequence:
        for (const std::size_t c : x.children) {
          const auto one = fixed_length(c);
          if (!one) return std::nullopt;
          sum += *one;
        }
    }
    return sum;
  }
  bool nullable(std::size_t n) const {
    const regex_node& x = nodes[n];
    const auto inner = [&](std::size_t c) { return nullable(c); };
    switch (x.what) {
      case form::set: return false;
      case form::assertion: return true;
      case form::group: return x.step != kind::atomic || nullable(x.children[0]);
      case form::repeat: return x.least == 0 || nullable(x.children[0]);
      case form::choice: return std::any_of(x.children.begin(), x.children.end(), inner);
      case form::sequence: break;
    }
    return std::all_of(x.children.begin(), x.children.end(), inner);
  }
  std::size_t quantified(std::size_t a) {
    for (int times = 0; more(); ++times) {
      std::uint32_t least = 0, most = any_times;
      bool counts = false;
      if (take("+"))
        least = 1;
      else if (take("?"))
        most = 1;
      else if (!take("*") && !(counts = counted(least, most)))
        return a;
      last_letter = 0;
      if (!problem.empty()) return 0;
      if (times >= 4) return bad("more than four quantifiers in a row are not supported");
      if (least > most) return bad("a repetition ends before it begins");
      if (most == any_times && nullable(a)) return bad("repeating what may be empty is not supported");
      regex_node n{.what = form::repeat, .least = least, .most = most, .children = {a}};
      // {m,n}+ repeats {m,n} in this syntax; only ?, * and + have possessive forms.
      if (counts && next_is('?')) return bad("a lazy {m,n} is not supported");
      if (!counts && take("+"))
        n.repetition = regex_node::greed::possessive;
      else if (!counts && take("?"))
        n.repetition = regex_node::greed::lazy;
      a = add(std::move(n));
    }
    return a;
  }
  // Reads {m}, {m,}, {,n} or {m,n}; any other '{' is an ordinary character.
  bool counted(std::uint32_t& least, std::uint32_t& most) {
    const std::size_t start = at;
    const auto digits = [&](std::uint32_t& out) {
      const std::size_t first = at;
      for (out = 0; more() && in[at] >= '0' && in[at] <= '9'; ++at)
        out = std::min(out * 10 + static_cast<std::uint32_t>(in[at] - '0'), 9999U);
      return at > first;
    };
    if (!take("{")) return false;
    const bool low = digits(least), comma = take(",");
    const bool high = comma && digits(most);
    if (!take("}") || (!low && !high)) return at = start, least = 0, most = any_times, false;
    if (!high) most = comma ? any_times : least;
    if (least > 1000 || (most > 1000 && most != any_times)) bad("a repetition count is larger than 1000");
    return true;
  }
  std::uint32_t hexadecimal(int least, int most) {
    std::uint32_t v = 0;
    int n = 0;
    for (; n < most && more(); ++n, ++at) {
      const char c = in[at];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      v = v * 16 + static_cast<std::uint32_t>(digit);
    }
    if (n < least || v > last_code) bad("a number of a character is not complete, or too large");
    return v;
  }
  // Reads an escape; `one` tells whether it stands for one character.
  code_set escape(bool& one) {
    ++at;
    if (!more()) return bad("the pattern ends after a backslash"), code_set{};
    const std::uint32_t c = literal();
    one = false;
    switch (c) {
      case 'd': return unicode::category("Nd");
      case 'D': return ~unicode::category("Nd");
      case 'w': return unicode::word_characters();
      case 'W': return ~unicode::word_characters();
      case 's': return unicode::spaces();
      case 'S': return ~unicode::spaces();
      case 'h':
      case 'H': {
        const code_set digits = code_set('0', '9') | code_set('A', 'F') | code_set('a', 'f');
        return c == 'h' ? digits : ~digits;
      }
      case 'p':
      case 'P': return named_property(c == 'P');
      default: break;
    }
    one = true;
    std::uint32_t code = c;
    if (c == 't')
      code = '\t';
    else if (c == 'n')
      code = '\n';
    else if (c == 'r')
      code = '\r';
    else if (c == 'f')
      code = '\f';
    else if (c == 'v')
      code = '\v';
    else if (c == 'a')
      code = '\a';
    else if (c == 'e')
      code = 0x1B;
    else if (c == 'u')
      code = hexadecimal(4, 4);
    else if (c == 'x' && take("{")) {
      code = hexadecimal(1, 8);
      if (!take("}")) bad("a '}' is missing");
    } else if (c == 'x')
      code = hexadecimal(1, 2);
    else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      bad("the escape \\", static_cast<char>(c), " is not supported");
    return {code, code};
  }
  code_set named_property(bool inverted) {
    if (!take("{")) return bad("a '{' is missing"), code_set{};
    if (take("^")) inverted = !inverted;
    const std::size_t end = in.find('}', at);
    if (end == in.npos) return bad("a '}' is missing"), code_set{};
    const std::string_view name = in.substr(at, end - at);
    at = end + 1;
    const std::optional<code_set> found = unicode::property(name);
    if (!found) return bad("the property ", in_quotes(name), " is not supported"), code_set{};
    return inverted ? ~*found : *found;
  }
  std::optional<code_set> posix_class() {  // [:alpha:] within a set
    if (!in.substr(at).starts_with("[:")) return std::nullopt;
    const std::size_t end = in.find(":]", at + 2);
    if (end == in.npos || end - at > 12) return std::nullopt;
    std::string_view name = in.substr(at + 2, end - at - 2);
    const bool inverted = name.starts_with('^');
    if (inverted) name.remove_prefix(1);
    at = end + 2;
    for (const char* known : {"alpha", "digit", "alnum", "space", "word"})
      if (const auto found = unicode::property(name); name == known && found) return inverted ? ~*found : *found;
    return bad("the class ", in_quotes(name), " is not supported"), code_set{};
  }
  // Reads a set after its '['. Parts that && separates are intersected.
  code_set set() {
    if (++depth > deepest_regex_group) return bad("sets are nested deeper than ", deepest_regex_group), code_set{};
    last_letter = 0;
    const bool inverted = take("^");
    std::optional<code_set> all;
    code_set part;
    for (bool first = true; more() && (first || in[at] != ']'); first = false) {
      if (take("&&")) {
        all = all ? *all & part : part;
        part = {};
        continue;
      }
      if (auto posix = posix_class()) {
        part = part | *posix;
        continue;
      }
      if (take("[")) {
        part = part | set();
        continue;
      }
      bool one = true;
      code_set low = next_is('\\') ? escape(one) : code_set{};
      if (problem.empty() && low.ranges().empty() && one) {
        const std::uint32_t c = literal();
        low = {c, c};
      }
      if (one && problem.empty() && next_is('-') && at + 1 < in.size() && in[at + 1] != ']') {
        ++at;
        bool high_is_one = true;
        code_set high = next_is('\\') ? escape(high_is_one) : code_set{};
        if (problem.empty() && high.ranges().empty()) {
          const std::uint32_t c = literal();
          high = {c, c};
        }
        if (!problem.empty()) break;
        if (!high_is_one || high.ranges()[0].from < low.ranges()[0].from || next_is('&'))
          bad("this range of characters is not supported");
        low = {low.ranges()[0].from, std::max(low.ranges()[0].from, high.ranges()[0].from)};
      }
      part = part | low;
    }
    if (problem.empty() && !take("]")) bad("a ']' is missing");
    if (all) part = *all & part;
    if (ignore_case) part = unicode::case_closed(part);
    --depth;
    return inverted ? ~part : part;
  }
  static code_set case_closed(const code_set& s) { return unicode::case_closed(s); }
};

// Turns the tree of regex_parser into steps.
struct regex_compiler {
  using form = regex_node::form;
  using greed = regex_node::greed;
  using kind = regex_step::kind;
  const std::vector<regex_node>& nodes;
  regex_program out{};
  bool too_large = false;

  std::uint32_t here() const { return static_cast<std::uint32_t>(out.steps.size()); }
  std::uint32_t add(regex_step s) {
    if (out.steps.size() >= most_regex_steps) return too_large = true, 0;
    out.steps.push_back(s);
    return here() - 1;
  }
  std::uint32_t add_set(const code_set& s) {
    if (out.sets.size() >= most_regex_sets) return too_large = true, 0;
    out.sets.emplace_back(s);
    return static_cast<std::uint32_t>(out.sets.size()) - 1;
  }
  void emit(std::size_t index) {
    if (too_large) return;
    const regex_node& n = nodes[index];
    switch (n.what) {
      case form::set: add({.what = kind::set, .set = add_set(n.set)}); return;
      case form::assertion: add({.what = n.step}); return;
      case form::sequence:
        for (const std::size_t c : n.children) emit(c);
        return;
      case form::group: return group(n.step, n.least, [&] { emit(n.children[0]); });
      case form::repeat: return repeat(n);
      case form::choice: break;
    }
    std::vector<std::uint32_t> ends;
    for (std::size_t k = 0; k < n.children.size(); ++k) {
      if (k + 1 == n.children.size()) {
        emit(n.children[k]);
        break;
      }
      const std::uint32_t fork = add({.what = kind::either, .to = here() + 1});
      emit(n.children[k]);
      ends.push_back(add({.what = kind::jump}));
      out.steps[fork].other = here();
    }
    for (const std::uint32_t e : ends) out.steps[e].to = here();
  }
  template <class Body> void group(kind k, std::uint32_t length, Body body) {
    const std::uint32_t begin = add({.what = k, .least = length});
    body();
    add({.what = kind::done});
    if (!too_large) out.steps[begin].to = here();
  }
  // A sequence of one part is that part.
  std::size_t sole(std::size_t n) const {
    while (nodes[n].what == form::sequence && nodes[n].children.size() == 1) n = nodes[n].children[0];
    return n;
  }
  void repeat(const regex_node& n) {
    const std::size_t body = sole(n.children[0]);
    if (nodes[body].what == form::set && n.repetition != greed::lazy) {
      add({.what = n.repetition == greed::possessive ? kind::run_all : kind::run,
           .set = add_set(nodes[body].set),
           .least = n.least,
           .most = n.most});
      return;
    }
    if (n.repetition == greed::possessive) return group(kind::atomic, 0, [&] { copies(n, body); });
    copies(n, body);
  }
  void copies(const regex_node& n, std::size_t body) {
    const bool lazy = n.repetition == greed::lazy;
    for (std::uint32_t k = 0; k < n.least && !too_large; ++k) emit(body);
    std::vector<std::uint32_t> forks;
    const auto fork = [&] { forks.push_back(add({.what = kind::either})); };
    if (n.most == any_times) {
      fork();
      emit(body);
      add({.what = kind::jump, .to = forks.back()});
    }
    for (std::uint32_t k = n.least; n.most != any_times && k < n.most && !too_large; ++k) fork(), emit(body);
    if (too_large) return;
    for (const std::uint32_t f : forks) {
      out.steps[f].to = lazy ? here() : f + 1;
      out.steps[f].other = lazy ? f + 1 : here();
    }
  }
  // Characters that a match of a node can begin with; false if the node can match without consuming one.
  bool first(std::size_t index, code_set& to) const {
    const regex_node& n = nodes[index];
    bool consumes = true;
    switch (n.what) {
      case form::set: return to = to | n.set, true;
      case form::assertion: return false;
      case form::group: return n.step == kind::atomic && first(n.children[0], to);
      case form::repeat: return first(n.children[0], to) && n.least > 0;
      case form::choice:
        for (const std::size_t c : n.children) consumes = first(c, to) && consumes;
        return consumes;
      case form::sequence: break;
    }
    return std::any_of(n.children.begin(), n.children.end(), [&](std::size_t c) { return first(c, to); });
  }
};

inline result<shared_regex> parse_split_regex(std::string_view pattern) {
  return guarded("regular expression", [&]() -> result<shared_regex> {
    if (pattern.size() > longest_split_regex)
      return fail("the regular expression ", in_quotes(pattern), " has ", number(pattern.size()),
                  " bytes, expected at most ", number(longest_split_regex));
    regex_parser parser{pattern};
    const std::size_t root = parser.choice();
    if (parser.problem.empty() && parser.at < pattern.size()) parser.bad("this ')' closes nothing");
    if (!parser.problem.empty()) return fail("the regular expression ", in_quotes(pattern, 600), ", ", parser.problem);
    regex_compiler compiler{parser.nodes};
    compiler.emit(root);
    compiler.add({});
    if (compiler.too_large)
      return fail("the regular expression ", in_quotes(pattern), " is too large once its repetitions are written out");
    code_set first;
    compiler.out.matches_empty = !compiler.first(root, first);
    compiler.out.first = code_table(first);
    compiler.out.pattern = pattern;
    return std::make_shared<const regex_program>(std::move(compiler.out));
  });
}

}  // namespace graft::io::hf
