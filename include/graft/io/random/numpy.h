// SPDX-License-Identifier: Apache-2.0
// Bit-exact reimplementation of numpy.random.default_rng (PCG64 XSL-RR 128/64, O'Neill 2014, seeded by SeedSequence),
// for indices that PEFT draws from a seed instead of storing them: choice without replacement (Floyd's algorithm or the
// tail of a shuffle) and shuffle of a list.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <unordered_set>
#include <vector>

namespace graft::io {

class pcg64 {
 public:
  explicit pcg64(std::uint64_t seed) {
    std::uint64_t words[4];
    spread(seed, words);
    step_ = {(words[2] << 1U) | (words[3] >> 63U), (words[3] << 1U) | 1U};
    state_ = sum(step_, {words[0], words[1]});
    advance();
  }
  std::uint32_t bits() {  // 32 bits: the lower half of a 64-bit output first, then the upper half
    if (has_upper_) return has_upper_ = false, upper_;
    advance();
    const std::uint64_t v = std::rotr(state_.high ^ state_.low, static_cast<int>(state_.high >> 58U));
    has_upper_ = true, upper_ = static_cast<std::uint32_t>(v >> 32U);
    return static_cast<std::uint32_t>(v);
  }
  // Uniform integer from 0 to `most` by Lemire's method (2019), as numpy draws integers and choices.
  std::uint32_t up_to(std::uint32_t most) {
    if (most == 0) return 0;
    const std::uint64_t n = std::uint64_t{most} + 1;
    std::uint64_t product = bits() * n;
    if (static_cast<std::uint32_t>(product) < n) {
      const std::uint64_t least = (0xffffffffU - most) % n;
      while (static_cast<std::uint32_t>(product) < least) product = bits() * n;
    }
    return static_cast<std::uint32_t>(product >> 32U);
  }
  // Uniform integer from 0 to `most` by masked rejection, as numpy's shuffle draws them.
  std::uint32_t masked_up_to(std::uint32_t most) {
    if (most == 0) return 0;
    const std::uint32_t mask = 0xffffffffU >> std::countl_zero(most);
    for (;;)
      if (const std::uint32_t v = bits() & mask; v <= most) return v;
  }

 private:
  struct wide {  // a 128-bit unsigned integer
    std::uint64_t high = 0, low = 0;
  };
  static constexpr wide sum(wide a, wide b) {
    const std::uint64_t low = a.low + b.low;
    return {a.high + b.high + (low < a.low ? 1 : 0), low};
  }
  static constexpr wide product(wide a, wide b) {
    constexpr std::uint64_t half = 0xffffffffU;
    const std::uint64_t a0 = a.low & half, a1 = a.low >> 32U, b0 = b.low & half, b1 = b.low >> 32U;
    const std::uint64_t left = a1 * b0 + ((a0 * b0) >> 32U), right = a0 * b1 + (left & half);
    const std::uint64_t high = a1 * b1 + (left >> 32U) + (right >> 32U);
    return {high + a.high * b.low + a.low * b.high, (right << 32U) | ((a0 * b0) & half)};
  }
  void advance() { state_ = sum(product(state_, {0x2360ed051fc65da4U, 0x4385df649fccf645U}), step_); }

  static void spread(std::uint64_t seed, std::uint64_t (&words)[4]) {
    std::uint32_t pool[4] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U), 0, 0};
    std::uint32_t constant = 0x43b0d7e5U;
    const auto hashed = [&constant](std::uint32_t v, std::uint32_t next) {
      v ^= constant, constant *= next, v *= constant;
      return v ^ (v >> 16U);
    };
    for (std::uint32_t& p : pool) p = hashed(p, 0x931e8875U);
    for (int from = 0; from < 4; ++from)
      for (int to = 0; to < 4; ++to) {
        if (from == to) continue;
        const std::uint32_t v = 0xca01f9ddU * pool[to] - 0x4973f715U * hashed(pool[from], 0x931e8875U);
        pool[to] = v ^ (v >> 16U);
      }
    constant = 0x8b51f9ddU;
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t low = hashed(pool[2 * i % 4], 0x58f38dedU);
      words[i] = low | (std::uint64_t{hashed(pool[(2 * i + 1) % 4], 0x58f38dedU)} << 32U);
    }
  }
  wide state_, step_;
  std::uint32_t upper_ = 0;
  bool has_upper_ = false;
};

// Returns what rng.choice(n, count, replace=False) returns.
inline std::vector<std::uint32_t> draw_choice(pcg64& rng, std::uint32_t n, std::uint32_t count) {
  const auto shuffle = [&rng](std::vector<std::uint32_t>& v, std::size_t first) {
    for (std::size_t i = v.size(); i-- > first;) std::swap(v[i], v[rng.up_to(static_cast<std::uint32_t>(i))]);
  };
  std::vector<std::uint32_t> chosen;
  if (n > 10000 && count > n / 50) {
    std::vector<std::uint32_t> all(n);
    std::iota(all.begin(), all.end(), 0U);
    shuffle(all, std::max(n - count, 1U));
    return {all.end() - count, all.end()};
  }
  std::unordered_set<std::uint32_t> seen;
  for (std::uint32_t last = n - count; last < n; ++last) {
    const std::uint32_t v = rng.up_to(last);
    chosen.push_back(seen.contains(v) ? last : v);
    seen.insert(chosen.back());
  }
  shuffle(chosen, 1);
  return chosen;
}
// Does what rng.shuffle does to a list.
inline void shuffle_list(pcg64& rng, std::vector<std::uint32_t>& v) {
  for (std::size_t i = v.size(); i-- > 1;) std::swap(v[i], v[rng.masked_up_to(static_cast<std::uint32_t>(i))]);
}

}  // namespace graft::io
