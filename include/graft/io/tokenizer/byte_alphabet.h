// SPDX-License-Identifier: Apache-2.0
// The byte alphabet of byte-level BPE: tokenizer.json writes every byte as a printable character, the byte itself or a
// character from U+0100 on (bytes_to_unicode in GPT-2's encoder.py).
#pragma once
#include <graft/io/tokenizer/unicode.h>

#include <optional>

namespace graft::io::hf {

// Maps a byte to the character that represents it; printable Latin-1 represents itself.
inline const std::vector<std::uint32_t>& byte_characters() {
  static const std::vector<std::uint32_t> all = [] {
    std::vector<std::uint32_t> table;
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool prints = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
      table.push_back(prints ? b : next++);
    }
    return table;
  }();
  return all;
}
// Maps text in this alphabet back to bytes; empty if a character represents no byte.
inline std::optional<std::string> bytes_written_as(std::string_view token) {
  static const std::vector<int> back = [] {
    std::vector<int> table(0x200, -1);
    for (std::size_t b = 0; b < 256; ++b) table[byte_characters()[b]] = static_cast<int>(b);
    return table;
  }();
  std::string out;
  for (character c = first_character(token); c.bytes != 0; c = first_character(token)) {
    if (c.code >= back.size() || back[c.code] < 0) return std::nullopt;
    out += static_cast<char>(back[c.code]);
    token.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace graft::io::hf
