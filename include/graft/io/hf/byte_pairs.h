// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding: a piece begins as bytes, and of all neighbouring pairs that may be merged the one with the lowest
// rank is, the leftmost first, until none is left. With the pairs in a heap a piece of n bytes takes n log n steps, so
// that no text can make it slow.
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace graft::io::hf {

// Pairs of tokens by open addressing: the one look-up that everything else waits for.
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
  // The first rank of a pair counts.
  void add(std::uint32_t a, std::uint32_t b, merge m) {
    bucket& s = buckets_[find(key(a, b))];
    if (s.key == 0) s = {key(a, b), m};
  }
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

struct byte_pairs {
  std::unordered_map<std::string, std::uint32_t> ids;  // by bytes
  std::uint32_t byte_ids[256] = {};
  pair_table merges;
  bool whole_first = false;  // a piece that is a token is that token, whatever the merges say
};

// Memory that one piece after the other uses.
class piece_encoder {
 public:
  explicit piece_encoder(const byte_pairs& model) : model_(model) {}

  void append(std::string_view piece, std::vector<std::int64_t>& out) {
    if (model_.whole_first) {
      whole_.assign(piece);
      if (const auto found = model_.ids.find(whole_); found != model_.ids.end()) return out.push_back(found->second);
    }
    parts_.clear();
    for (const char c : piece) parts_.push_back({model_.byte_ids[static_cast<unsigned char>(c)]});
    merge_all();
    for (const part& p : parts_)
      if (p.alive) out.push_back(p.id);
  }

 private:
  struct part {
    std::uint32_t id;
    std::int32_t before = -1, after = -1;
    bool alive = true;
  };
  struct candidate {
    std::uint32_t rank, left;
    std::uint32_t left_id, right_id, made;
    friend bool operator>(const candidate& a, const candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
  };
  part& at(std::int32_t i) { return parts_[static_cast<std::size_t>(i)]; }
  void consider(std::int32_t left) {
    if (left < 0 || at(left).after < 0) return;
    const std::uint32_t a = at(left).id, b = at(at(left).after).id;
    if (const pair_table::merge* m = model_.merges.get(a, b))
      heap_.push({m->rank, static_cast<std::uint32_t>(left), a, b, m->made});
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
      if (!left.alive || left.id != c.left_id || left.after < 0 || at(left.after).id != c.right_id) continue;
      part& right = at(left.after);
      left.id = c.made, right.alive = false, left.after = right.after;
      if (left.after >= 0) at(left.after).before = i;
      consider(left.before), consider(i);
    }
  }

  const byte_pairs& model_;
  std::string whole_;
  std::vector<part> parts_;
  std::priority_queue<candidate, std::vector<candidate>, std::greater<>> heap_;
};

}  // namespace graft::io::hf
