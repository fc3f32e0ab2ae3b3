// SPDX-License-Identifier: Apache-2.0
// Added tokens, such as <|endoftext|>: they are found in the text before it is pretokenized. Where several match at a
// position, the longest one is taken. One may ask to stand alone (single_word), and may take the white space around it
// (lstrip, rstrip).
#pragma once
#include <graft/io/tokenizer/normalizer.h>

#include <unordered_map>

namespace graft::io::hf {

struct added_token {
  std::string content;
  std::uint32_t id = 0;
  bool special = false, single_word = false, lstrip = false, rstrip = false;
};

class added_token_finder {
 public:
  void add(added_token t) {
    if (t.content.empty()) return;
    const auto first = static_cast<unsigned char>(t.content[0]);
    std::vector<std::size_t>& lengths = lengths_[first];
    if (std::find(lengths.begin(), lengths.end(), t.content.size()) == lengths.end()) {
      lengths.push_back(t.content.size());
      std::sort(lengths.rbegin(), lengths.rend());
    }
    std::string content = t.content;
    tokens_.insert_or_assign(std::move(content), std::move(t));
  }
  // Calls token(t) for every added token and plain(text, from) for the text between them, in order.
  template <class Plain, class Token> void split(std::string_view s, Plain plain, Token token) const {
    std::size_t done = 0;
    for (std::size_t i = 0; i < s.size() && !tokens_.empty();) {
      const added_token* const t = at(s.substr(i));
      if (t == nullptr) {
        ++i;
        continue;
      }
      std::size_t from = i, to = i + t->content.size();
      i = to;
      if (t->single_word && (is_word_before(s, from) || is_string(s.substr(to)))) continue;
      if (t->lstrip) from = std::max(done, stripped(s.substr(0, from), false, true).size());
      if (t->rstrip) to = s.size() - stripped(s.substr(to), true, false).size();
      if (done < from) plain(s.substr(done, from - done), done);
      token(*t);
      done = to;
    }
    if (done < s.size()) plain(s.substr(done), done);
  }

 private:
  // The longest added token that s begins with. Its contents are looked up by length, so that a vocabulary with
  // thousands of added tokens costs no more than their different lengths.
  const added_token* at(std::string_view s) const {
    for (const std::size_t n : lengths_[static_cast<unsigned char>(s[0])]) {
      if (n > s.size()) continue;
      if (const auto found = tokens_.find(s.substr(0, n)); found != tokens_.end()) return &found->second;
    }
    return nullptr;
  }
  static bool is_string(std::string_view s) {
    static const code_table words(unicode::rust_word_characters());
    return !s.empty() && words.has(first_character(s).code);
  }
  static bool is_word_before(std::string_view s, std::size_t at) {
    return at > 0 && is_string(s.substr(character_before(s, at)));
  }

  std::unordered_map<std::string, added_token, text_hash, std::equal_to<>> tokens_;
  std::vector<std::size_t> lengths_[256];
};

}  // namespace graft::io::hf
