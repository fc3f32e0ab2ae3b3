// SPDX-License-Identifier: Apache-2.0
// UTF-8 (RFC 3629) validation and encoding. A character has one of the forms
//     0xxxxxxx   110xxxxx 10xxxxxx   1110xxxx 10xxxxxx 10xxxxxx   11110xxx 10xxxxxx 10xxxxxx 10xxxxxx
// and is well formed if it uses the shortest form, is no surrogate and is at most 0x10FFFF.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace graft::io {

// Length of the first character in bytes; 0 if it is ill-formed or the text is empty.
constexpr std::size_t utf8_length(std::string_view s) {
  auto byte = [&](std::size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0U; };
  const unsigned first = byte(0);
  if (s.empty()) return 0;
  if (first < 0x80) return 1;
  const std::size_t n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  std::uint32_t code = first & (0x7FU >> n);
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(i) & 0x3FU);
  }
  const bool short_enough = code >= (n == 2 ? 0x80U : n == 3 ? 0x800U : 0x10000U);
  return short_enough && (code < 0xD800 || code > 0xDFFF) && code <= 0x10FFFF ? n : 0;
}
constexpr bool is_utf8(std::string_view s) {
  while (!s.empty()) {
    const std::size_t n = utf8_length(s);
    if (n == 0) return false;
    s.remove_prefix(n);
  }
  return true;
}
inline void append_utf8(std::string& out, std::uint32_t code) {
  const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(lead[more] | (code >> (6 * more)));
  for (int k = more - 1; k >= 0; --k) out += static_cast<char>(0x80U | ((code >> (6 * k)) & 0x3FU));
}

}  // namespace graft::io
