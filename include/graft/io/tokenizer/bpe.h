// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding (BPE) of one pretokenized word. A word begins as the tokens of its characters; one without a token
// becomes tokens of its bytes (byte_fallback), the unknown token, or nothing, as huggingface/tokenizers does. Then the
// mergeable pair of neighbors with the lowest rank, leftmost first, is merged until there is none. The pairs are in a
// heap, so that a word of n characters takes O(n log n) steps and no text can make encoding slow.
#pragma once
#include <graft/io/error_text.h>
#include <graft/io/tokenizer/unicode.h>

#include <queue>
#include <span>
#include <unordered_map>

namespace graft::io::hf {

// Hash table from a pair of tokens to its merge, with open addressing: this look-up dominates the encoding time.
class pair_table {
 public:
  struct merge {
    std::uint32_t rank = 0, made = 0;
  };
  void reserve(std::size_t n) {
    std::size_t size = 16;
    while (size < 2 * n) size *= 2;
    buckets_.assign(size, {});
  }
  // Adds a merge and replaces an earlier one of the same pair. reserve() bounds their number.
  void add(std::uint32_t a, std::uint32_t b, merge m) { buckets_[find(key(a, b))] = {key(a, b), m}; }
  const merge* get(std::uint32_t a, std::uint32_t b) const {
    const bucket& s = buckets_[find(key(a, b))];
    return s.key != 0 ? &s.value : nullptr;
  }

 private:
  struct bucket {
    std::uint64_t key = 0;
    merge value{};
  };
  static std::uint64_t key(std::uint32_t a, std::uint32_t b) { return (static_cast<std::uint64_t>(a) + 1) << 32U | b; }
  std::size_t find(std::uint64_t k) const {
    std::size_t i = (k * 0x9E3779B97F4A7C15ULL) >> 20U;
    for (i &= buckets_.size() - 1; buckets_[i].key != 0 && buckets_[i].key != k;) i = (i + 1) & (buckets_.size() - 1);
    return i;
  }
  std::vector<bucket> buckets_ = std::vector<bucket>(16);
};

inline constexpr std::uint32_t no_token = 0xFFFFFFFF;
// Token by its text.
using token_ids = std::unordered_map<std::string, std::uint32_t, text_hash, std::equal_to<>>;
// Tokens <0x00> to <0xFF> of a vocabulary, or no_token.
inline std::array<std::uint32_t, 256> byte_tokens_of(const token_ids& ids) {
  constexpr char hex[] = "0123456789ABCDEF";
  std::array<std::uint32_t, 256> out{};
  for (std::size_t b = 0; b < 256; ++b) {
    const auto at = ids.find(std::string("<0x") + hex[b / 16] + hex[b % 16] + '>');
    out[b] = at != ids.end() ? at->second : no_token;
  }
  return out;
}

struct bpe_model {
  token_ids ids;
  pair_table merges;
  bool ignores_merges = false;  // ignore_merges: a word in the vocabulary is that token
  bool byte_fallback = false, fuse_unk = false;
  std::string unk_token{};                       // empty if there is none
  std::vector<std::uint32_t> of_character{};     // token of a character alone, by its code
  std::array<std::uint32_t, 256> byte_tokens{};  // the tokens of single bytes, for byte_fallback

  // Fills in what follows from the vocabulary.
  void finish() {
    for (const auto& [token, id] : ids) {
      const character c = first_character(token);
      if (c.bytes == 0 || c.bytes != token.size()) continue;
      if (c.code >= of_character.size()) of_character.resize(c.code + 1, no_token);
      of_character[c.code] = id;
    }
    byte_tokens = byte_tokens_of(ids);
  }
};

// Adds the merge of two tokens by their texts; false if they or what they make are not in the vocabulary.
inline bool add_merge(bpe_model& model, std::string_view a, std::string_view b, std::size_t rank) {
  const auto left = model.ids.find(a), right = model.ids.find(b), both = model.ids.find(std::string(a).append(b));
  if (left == model.ids.end() || right == model.ids.end() || both == model.ids.end()) return false;
  model.merges.add(left->second, right->second, {static_cast<std::uint32_t>(rank), both->second});
  return true;
}

// Encodes word after word and reuses its memory. Words that come again are looked up.
class bpe_encoder {
 public:
  explicit bpe_encoder(const bpe_model& model) : model_(model) {
    const auto unk = model.ids.find(model.unk_token);
    if (!model.unk_token.empty() && unk != model.ids.end()) unk_ = unk->second;
  }

  // Appends the tokens of a word; an error if it needs an unknown token that the vocabulary does not have.
  status append(std::string_view word, std::vector<std::int64_t>& out) {
    if (model_.ignores_merges)
      if (const auto found = model_.ids.find(word); found != model_.ids.end())
        return out.push_back(found->second), status(ok);
    const bool short_enough = word.size() <= longest_cached;
    if (short_enough)
      if (const auto seen = cache_.find(word); seen != cache_.end())
        return out.insert(out.end(), seen->second.begin(), seen->second.end()), status(ok);
    parts_.clear();
    if (!begin(word))
      return fail("the text has a character without a token, and the unknown token ", in_quotes(model_.unk_token),
                  " is not in the vocabulary");
    merge_all();
    const std::size_t before = out.size();
    for (const part& p : parts_)
      if (p.alive) out.push_back(p.id);
    if (short_enough && cache_.size() < most_cached)
      cache_.emplace(word, std::vector<std::int64_t>(out.begin() + static_cast<std::ptrdiff_t>(before), out.end()));
    return ok;
  }

 private:
  static constexpr std::size_t longest_cached = 48, most_cached = 50'000;
  struct part {
    std::uint32_t id;
    std::int32_t before = -1, after = -1;
    bool alive = true;
  };
  struct candidate {
    std::uint32_t rank, left;
    std::uint32_t made;
    friend bool operator>(const candidate& a, const candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
  };
  // Writes the tokens of the characters of a word; false if the unknown token is needed and does not exist. Pending
  // unknown characters come after the bytes of those that fall back, as in huggingface/tokenizers.
  bool begin(std::string_view word) {
    bool pending = false;
    for (character c = first_character(word); c.bytes != 0; c = first_character(word)) {
      const std::string_view written = word.substr(0, c.bytes);
      word.remove_prefix(c.bytes);
      const std::uint32_t id = c.code < model_.of_character.size() ? model_.of_character[c.code] : no_token;
      if (id != no_token) {
        if (pending) parts_.push_back({unk_}), pending = false;
        parts_.push_back({id});
      } else if (model_.byte_fallback && has_bytes(written)) {
        for (const char b : written) parts_.push_back({model_.byte_tokens[static_cast<unsigned char>(b)]});
      } else if (!model_.unk_token.empty()) {
        if (unk_ == no_token) return false;
        if (pending && !model_.fuse_unk) parts_.push_back({unk_});
        pending = true;
      }
    }
    if (pending) parts_.push_back({unk_});
    return true;
  }
  bool has_bytes(std::string_view s) const {
    return std::all_of(s.begin(), s.end(),
                       [&](char b) { return model_.byte_tokens[static_cast<unsigned char>(b)] != no_token; });
  }
  part& at(std::int32_t i) { return parts_[static_cast<std::size_t>(i)]; }
  void consider(std::int32_t left) {
    if (left < 0 || at(left).after < 0) return;
    const std::uint32_t a = at(left).id, b = at(at(left).after).id;
    if (const pair_table::merge* m = model_.merges.get(a, b))
      heap_.push({m->rank, static_cast<std::uint32_t>(left), m->made});
  }
  void merge_all() {
    const auto n = static_cast<std::int32_t>(parts_.size());
    for (std::int32_t i = 0; i < n; ++i) at(i).before = i - 1, at(i).after = i + 1 < n ? i + 1 : -1;
    for (std::int32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!heap_.empty()) {
      const candidate c = heap_.top();
      heap_.pop();
      const auto i = static_cast<std::int32_t>(c.left);
      part& left = at(i);
      if (!left.alive || left.after < 0) continue;
      part& right = at(left.after);
      // A heap entry is stale if its pair no longer merges to the token that it was pushed for.
      const pair_table::merge* const now = model_.merges.get(left.id, right.id);
      if (now == nullptr || now->made != c.made) continue;
      left.id = c.made, right.alive = false, left.after = right.after;
      if (left.after >= 0) at(left.after).before = i;
      consider(left.before), consider(i);
    }
  }

  const bpe_model& model_;
  std::uint32_t unk_ = no_token;
  std::unordered_map<std::string, std::vector<std::int64_t>, text_hash, std::equal_to<>> cache_;
  std::vector<part> parts_;
  std::priority_queue<candidate, std::vector<candidate>, std::greater<>> heap_;
};

}  // namespace graft::io::hf
