// SPDX-License-Identifier: Apache-2.0
// The class of every character in one table of bytes, filled once: what regular expressions of tokenizers ask for
// (letter, number, space), and whether NFC has to look at a character.
#pragma once
#include <graft/io/hf/unicode_tables.h>
#include <graft/io/utf8.h>

#include <vector>

namespace graft::io::hf {

enum char_class : unsigned char { is_letter = 1, is_number = 2, is_space = 4, matters_in_nfc = 8 };

inline const unsigned char* char_classes() {
  static const std::vector<unsigned char> all = [] {
    std::vector<unsigned char> table(0x110000);
    const auto mark = [&](std::uint32_t from, std::uint32_t to, char_class what) {
      for (std::uint32_t c = from; c <= to; ++c) table[c] = static_cast<unsigned char>(table[c] | what);
    };
    for (const auto& r : letters) mark(r[0], r[1], is_letter);
    for (const auto& r : numbers) mark(r[0], r[1], is_number);
    constexpr std::uint32_t spaces[][2] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                           {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                           {0x205F, 0x205F}, {0x3000, 0x3000}};
    for (const auto& r : spaces) mark(r[0], r[1], is_space);
    for (const auto& r : combining_classes) mark(r[0], r[1], matters_in_nfc);
    for (const auto& r : compositions) mark(r[2], r[2], matters_in_nfc);
    for (const auto& r : replacements) mark(r[0], r[0], matters_in_nfc);
    mark(0x1161, 0x1175, matters_in_nfc), mark(0x11A8, 0x11C2, matters_in_nfc);  // Hangul vowels and final consonants
    return table;
  }();
  return all.data();
}

struct character {
  std::uint32_t code = 0;
  std::uint32_t bytes = 0;  // 0 at the end
};
// The first character of well-formed UTF-8.
inline character first_character(std::string_view s) {
  if (s.empty()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(s[i])); };
  const std::uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b < 0xE0) return {(b & 0x1FU) << 6U | (byte(1) & 0x3FU), 2};
  if (b < 0xF0) return {(b & 0xFU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU), 3};
  return {(b & 7U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU), 4};
}

}  // namespace graft::io::hf
