// SPDX-License-Identifier: Apache-2.0
// Mutates valid inputs at random: bytes, chunks, and the numbers in text. The result of a seed is the same on every
// machine, so that a failure is reported as a number.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

// Splitmix64 (Steele, Lea and Flood 2014): every seed is as good as any other.
class dice {
 public:
  constexpr explicit dice(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>((*this)() % n); }

 private:
  std::uint64_t state_;
};

// The generator of one input. Its seed is drawn from the first number of the stream's seed, so that the streams of
// different seeds, also of adjacent ones, have no inputs in common.
constexpr dice dice_of(std::uint64_t seed, std::uint64_t number) { return dice(dice(seed)() + number); }
static_assert(dice_of(7, 0)() != dice_of(8, 0)() && dice_of(7, 1)() != dice_of(8, 0)() &&
              dice_of(7, 4)() != dice_of(11, 0)() && dice_of(7, 28)() != dice_of(11, 0)());

inline constexpr std::array<std::string_view, 20> odd_numbers{"0",
                                                              "-1",
                                                              "1",
                                                              "2",
                                                              "3",
                                                              "7",
                                                              "64",
                                                              "65535",
                                                              "65536",
                                                              "1e308",
                                                              "1e-308",
                                                              "0.5",
                                                              "2147483647",
                                                              "2147483648",
                                                              "-2147483648",
                                                              "4294967296",
                                                              "9223372036854775807",
                                                              "18446744073709551615",
                                                              "1e400",
                                                              "-0"};
inline constexpr std::array<std::string_view, 16> odd_words{"null", "true", "{}",  "[]",    "\"\"",   "\\u0000",
                                                            "[[[[", ",",    ":",   "\"r\"", "(a|b)*", "(?!x)",
                                                            "\\d+", "[^",   "NaN", "\xff"};

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Replaces one of the numbers in a text.
inline void change_number(std::string& s, dice& d) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < s.size(); ++i)
    if (is_digit(s[i]) && (i == 0 || !is_digit(s[i - 1]))) starts.push_back(i);
  if (starts.empty()) return;
  const std::size_t from = starts[d.below(starts.size())];
  std::size_t to = from;
  while (to < s.size() && (is_digit(s[to]) || s[to] == '.')) ++to;
  s.replace(from, to - from, odd_numbers[d.below(odd_numbers.size())]);
}
inline void change_bytes(std::string& s, dice& d) {
  const std::size_t at = d.below(s.size() + 1), n = std::min<std::size_t>(1 + d.below(8), s.size() - at);
  switch (d.below(6)) {
    case 0: s.erase(at, n); break;
    case 1: s.insert(at, s.substr(d.below(s.size() + 1), 1 + d.below(16))); break;
    case 2: s.insert(at, odd_words[d.below(odd_words.size())]); break;
    case 3: s.resize(at); break;
    case 4:
      if (at < s.size()) s[at] = static_cast<char>(d());
      break;
    default:
      if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << d.below(7)));
  }
}
inline std::string mutated(std::string s, dice& d, bool numbers_only) {
  for (std::size_t n = 1 + d.below(numbers_only ? 2 : 4); n > 0; --n) {
    if (numbers_only || d.below(3) == 0)
      change_number(s, d);
    else
      change_bytes(s, d);
  }
  return s;
}

}  // namespace fuzz
