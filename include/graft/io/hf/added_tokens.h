// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in the text as they are, before it is cut into words: <|endoftext|> and the like. At each place
// the longest one counts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace graft::io::hf {

struct added_token {
  std::string content;
  std::uint32_t id = 0;
  bool special = false;
};

class added_token_finder {
 public:
  void add(added_token t) {
    if (t.content.empty()) return;
    by_first_[static_cast<unsigned char>(t.content[0])].push_back(std::move(t));
  }
  // The first token at or behind `from`; null where there is none.
  const added_token* find(std::string_view s, std::size_t from, std::size_t& where) const {
    for (std::size_t i = from; i < s.size(); ++i) {
      const added_token* best = nullptr;
      for (const added_token& t : by_first_[static_cast<unsigned char>(s[i])])
        if (s.substr(i).starts_with(t.content) && (best == nullptr || t.content.size() > best->content.size()))
          best = &t;
      if (best != nullptr) return where = i, best;
    }
    return nullptr;
  }
  // plain(text) for what stands between tokens, token(t) for each.
  template <class Plain, class Token> void split(std::string_view s, Plain plain, Token token) const {
    std::size_t from = 0, where = 0;
    while (const added_token* t = find(s, from, where)) {
      if (where > from) plain(s.substr(from, where - from));
      token(*t);
      from = where + t->content.size();
    }
    if (from < s.size()) plain(s.substr(from));
  }

 private:
  std::vector<added_token> by_first_[256];
};

}  // namespace graft::io::hf
