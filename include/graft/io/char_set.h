// SPDX-License-Identifier: Apache-2.0
// A set of bytes, for the character classes of pattern.h. (std::bitset of two sizes in one file makes g++ 12 warn about
// array bounds that are right.)
#pragma once
#include <cstdint>

namespace graft::io {

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

}  // namespace graft::io
