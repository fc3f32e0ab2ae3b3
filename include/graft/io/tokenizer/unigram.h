// SPDX-License-Identifier: Apache-2.0
// Unigram language model (SentencePiece): of all ways to write a word as tokens, the one whose scores (logarithms of
// probabilities) have the largest sum, found by Viterbi's algorithm over the positions of the word. A character without
// a token becomes tokens of its bytes (byte_fallback) or the unknown token. Arithmetic and ties are those of
// huggingface/tokenizers: double, and the candidate that comes first wins.
#pragma once
#include <graft/io/tokenizer/bpe.h>

namespace graft::io::hf {

inline constexpr std::size_t longest_unigram_token = 1000;  // bounds the time per byte of text

// Tokens by their bytes, one after the other; the children of a node are in one hash table.
class token_trie {
 public:
  void reserve(std::size_t bytes) { children_.reserve(bytes); }
  void add(std::string_view token, std::uint32_t id) {
    std::uint32_t node = 0;
    for (const char c : token) {
      const auto byte = static_cast<unsigned char>(c);
      const pair_table::merge* next = children_.get(node, byte);
      if (next == nullptr) {
        const auto made = static_cast<std::uint32_t>(token_.size());
        children_.add(node, byte, {0, made});
        token_.push_back(no_token);
        node = made;
      } else {
        node = next->made;
      }
    }
    token_[node] = id;
  }
  // Calls found(length, token) for every token that s begins with, shortest first.
  template <class Found> void prefixes(std::string_view s, Found found) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < s.size(); ++i) {
      const pair_table::merge* const next = children_.get(node, static_cast<unsigned char>(s[i]));
      if (next == nullptr) return;
      node = next->made;
      if (token_[node] != no_token) found(i + 1, token_[node]);
    }
  }

 private:
  pair_table children_;
  std::vector<std::uint32_t> token_{no_token};
};

struct unigram_model {
  token_ids ids;
  std::vector<double> scores;
  token_trie tokens;
  std::uint32_t unk = no_token;
  bool byte_fallback = false, fuse_unk = true;
  double least_score = 0;
  std::array<std::uint32_t, 256> byte_tokens{};
};

class unigram_encoder {
 public:
  explicit unigram_encoder(const unigram_model& model) : m_(model) {}

  status append(std::string_view word, std::vector<std::int64_t>& out) {
    best_.assign(word.size() + 1, {});
    const double unk_score = m_.least_score - 10;  // kUnkPenalty of SentencePiece
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t one = first_character(word.substr(at)).bytes;
      const double so_far = best_[at].score;
      bool has_single = false;
      const auto offer = [&](std::size_t length, std::uint32_t id, double score) {
        ending& e = best_[at + length];
        if (e.from == nowhere || score > e.score) e = {score, at, id};
      };
      m_.tokens.prefixes(word.substr(at), [&](std::size_t length, std::uint32_t id) {
        offer(length, id, m_.scores[id] + so_far);
        has_single = has_single || length == one;
      });
      if (!has_single) {
        if (m_.unk == no_token)
          return fail("the text has a character without a token, and the model has no 'unk_id', expected one");
        offer(one, m_.unk, unk_score + so_far);
      }
      at += one;
    }
    pieces_.clear();
    for (std::size_t end = word.size(); end > 0;) {
      const ending& e = best_[end];
      const bool unknown = m_.fuse_unk && m_.unk != no_token && e.id == m_.unk;
      if (unknown && !pieces_.empty() && pieces_.back().unknown)
        pieces_.back().from = e.from;
      else
        pieces_.push_back({e.from, end, unknown});
      end = e.from;
    }
    for (std::size_t k = pieces_.size(); k-- > 0;)
      put(word.substr(pieces_[k].from, pieces_[k].to - pieces_[k].from), out);
    return ok;
  }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  struct ending {  // the best way to write the word up to here: its last token
    double score = 0;
    std::size_t from = nowhere;
    std::uint32_t id = 0;
  };
  struct piece {
    std::size_t from, to;
    bool unknown;
  };
  void put(std::string_view text, std::vector<std::int64_t>& out) const {
    if (const auto at = m_.ids.find(text); at != m_.ids.end()) return out.push_back(at->second);
    const auto has_token = [&](char b) { return m_.byte_tokens[static_cast<unsigned char>(b)] != no_token; };
    if (m_.byte_fallback && std::all_of(text.begin(), text.end(), has_token)) {
      for (const char b : text) out.push_back(m_.byte_tokens[static_cast<unsigned char>(b)]);
      return;
    }
    out.push_back(m_.unk);  // unk exists: append() refuses the text otherwise
  }

  const unigram_model& m_;
  std::vector<ending> best_;
  std::vector<piece> pieces_;
};

}  // namespace graft::io::hf
