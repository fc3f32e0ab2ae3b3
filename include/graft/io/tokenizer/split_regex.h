// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json (Split, Replace) in the syntax of Oniguruma, which huggingface/tokenizers uses.
// io/regex serves module paths: full matches in ASCII. Here matches are searched, and the order of alternatives counts,
// so the matcher backtracks, on a stack of its own and with a bound on its steps that grows with the text: a pattern
// that takes exponential time becomes an error. Supported:
//     . [..] with nested sets, && and [:name:]   \p{..} \P{..} \s \d \w \h   ( ) (?: ) (?<n> ) (?> ) |
//     * + ? {m,n}, lazy and possessive forms   (?i: ) (?m: )   (?= ) (?! ) (?<= ) (?<! )   ^ $ \A \z \Z \b \B
#pragma once
#include <graft/io/error_text.h>
#include <graft/io/tokenizer/unicode.h>

#include <memory>

namespace graft::io::hf {

struct regex_step {
  enum class kind : unsigned char {
    set,      // one character of a set
    run,      // as many characters of a set as there are, at least `least`, at most `most`; gives back one by one
    run_all,  // as run, but gives none back (possessive)
    either,   // goes on at `to`, and where that fails at `other`
    jump,     // goes on at `to`
    atomic,   // matches the steps up to `to` alone, and keeps their first match
    ahead,    // the steps up to `to` match here (or not)
    not_ahead,
    behind,  // the steps up to `to` match `least` characters before here (or not)
    not_behind,
    begin,
    end,
    end_or_newline,
    line_begin,
    line_end,
    word_edge,
    no_word_edge,
    done
  } what = kind::done;
  std::uint32_t set = 0, to = 0, other = 0, least = 0, most = 0;
};

// A compiled pattern. Matching does not change it, so threads may share it.
struct regex_program {
  std::string pattern;
  std::vector<regex_step> steps;
  std::vector<code_table> sets;
  code_table first;  // characters that a match can begin with
  bool matches_empty = false;
};

class regex_matcher {
 public:
  regex_matcher(const regex_program& p, std::string_view text)
      : p_(p), s_(text), left_(1'000'000 + 2'000 * static_cast<std::uint64_t>(text.size())) {}

  struct match {
    std::size_t from, to;
  };
  // Finds the first match at or after `from`; matches that are empty are found as well.
  std::optional<match> find(std::size_t from) {
    for (std::size_t i = from;;) {
      const character c = first_character(s_.substr(i));
      if (p_.matches_empty || (c.bytes != 0 && p_.first.has(c.code)))
        if (const std::size_t end = run(0, i); end != none) return match{i, end};
      if (c.bytes == 0 || exhausted()) return std::nullopt;
      i += c.bytes;
    }
  }
  bool exhausted() const { return left_ == 0; }

 private:
  using kind = regex_step::kind;
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  // What to try when a match fails: step `pc` at `at`; and at every character down to `low`, for a run that gives back.
  struct retry {
    std::size_t pc, at, low;
  };
  bool spend(std::size_t n) { return left_ = left_ > n ? left_ - n : 0, left_ != 0; }
  character peek(std::size_t i) const { return first_character(s_.substr(i)); }
  bool word_at(std::size_t i) const {
    static const code_table words(unicode::word_characters());
    return i < s_.size() && words.has(peek(i).code);
  }
  bool at_edge(std::size_t i) const { return (i > 0 && word_at(character_before(s_, i))) != word_at(i); }
  bool holds(kind what, std::size_t i) const {
    switch (what) {
      case kind::begin: return i == 0;
      case kind::end: return i == s_.size();
      case kind::end_or_newline: return i == s_.size() || (i + 1 == s_.size() && s_[i] == '\n');
      case kind::line_begin: return i == 0 || (s_[i - 1] == '\n' && i < s_.size());
      case kind::line_end: return i == s_.size() || s_[i] == '\n';
      case kind::word_edge: return at_edge(i);
      default: return !at_edge(i);
    }
  }
  std::size_t behind(std::size_t pc, std::uint32_t characters, std::size_t i) {
    for (std::uint32_t k = 0; k < characters; ++k) {
      if (i == 0) return none;
      i = character_before(s_, i);
    }
    return run(pc, i);
  }

  // Matches the steps from `pc` up to their `done`; returns the end of the match. It calls itself for groups that
  // look around or are atomic only, whose depth the parser bounds.
  std::size_t run(std::size_t pc, std::size_t at) {
    const std::size_t bottom = retries_.size();
    for (;;) {
      if (!spend(1)) return retries_.resize(bottom), none;
      const regex_step& step = p_.steps[pc];
      bool failed = false;
      switch (step.what) {
        case kind::set: {
          const character c = peek(at);
          failed = c.bytes == 0 || !p_.sets[step.set].has(c.code);
          at += c.bytes, ++pc;
          break;
        }
        case kind::run:
        case kind::run_all: {
          const code_table& set = p_.sets[step.set];
          std::uint32_t n = 0;
          std::size_t low = at;
          for (; n < step.most; ++n) {
            if (n == step.least) low = at;
            const character c = peek(at);
            if (c.bytes == 0 || !set.has(c.code)) break;
            at += c.bytes;
          }
          failed = n < step.least || !spend(n);
          if (n == step.least) low = at;
          ++pc;
          if (!failed && step.what == kind::run && at > low) retries_.push_back({pc, at, low});
          break;
        }
        case kind::either:
          retries_.push_back({step.other, at, at});
          pc = step.to;
          break;
        case kind::jump: pc = step.to; break;
        case kind::atomic: {
          const std::size_t end = run(pc + 1, at);
          failed = end == none;
          at = end, pc = step.to;
          break;
        }
        case kind::ahead:
        case kind::not_ahead:
          failed = (run(pc + 1, at) != none) != (step.what == kind::ahead);
          pc = step.to;
          break;
        case kind::behind:
        case kind::not_behind:
          failed = (behind(pc + 1, step.least, at) != none) != (step.what == kind::behind);
          pc = step.to;
          break;
        case kind::done: return retries_.resize(bottom), at;
        default: failed = !holds(step.what, at), ++pc;
      }
      if (!failed) continue;
      if (retries_.size() == bottom) return none;
      retry& r = retries_.back();
      pc = r.pc;
      if (r.at > r.low) {
        at = r.at = character_before(s_, r.at);
        if (r.at == r.low) retries_.pop_back();
      } else {
        at = r.at;
        retries_.pop_back();
      }
    }
  }

  const regex_program& p_;
  std::string_view s_;
  std::uint64_t left_;
  std::vector<retry> retries_;
};

// Calls found(from, to) for all matches, which do not overlap; false if the steps did not suffice. As in Oniguruma's
// iteration, an empty match right after another match does not count.
template <class Found> bool for_each_match(const regex_program& p, std::string_view s, Found found) {
  regex_matcher m(p, s);
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= s.size()) {
    const auto hit = m.find(from);
    if (!hit) break;
    if (hit->from == hit->to) {
      const std::size_t next = hit->to + std::max(1U, first_character(s.substr(hit->to)).bytes);
      if (last_end != hit->to) found(hit->from, hit->to);
      from = next;
    } else {
      found(hit->from, hit->to);
      from = hit->to;
    }
    last_end = hit->to;
  }
  return !m.exhausted();
}

// Patterns are shared by copies of a tokenizer.
using shared_regex = std::shared_ptr<const regex_program>;

}  // namespace graft::io::hf
