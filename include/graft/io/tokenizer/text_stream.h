// SPDX-License-Identifier: Apache-2.0
// Streaming detokenizer: decodes the UTF-8 of generated tokens incrementally. Complete characters are returned, an
// incomplete one is held back, and each maximal invalid sequence becomes U+FFFD (Unicode Standard, section 3.9; as
// Rust's from_utf8_lossy).
#pragma once
#include <graft/io/utf8.h>

namespace graft::io::hf {

class text_stream {
 public:
  // Appends bytes and returns the characters that they complete.
  std::string feed(std::string_view bytes) {
    waiting_ += bytes;
    return taken(false);
  }
  // Returns the rest at the end of the stream; an incomplete character becomes U+FFFD.
  std::string finish() { return taken(true); }

 private:
  // Length of the longest prefix of s that begins a character, for text that begins with an incomplete or invalid one.
  static std::size_t beginning(std::string_view s) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
    const unsigned first = byte(0);
    if (first < 0xC2 || first > 0xF4) return 1;
    const std::size_t whole = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    std::size_t n = 1;
    while (n < s.size() && n < whole) {
      const unsigned b = byte(n);
      const unsigned low = n == 1 && first == 0xE0 ? 0xA0 : n == 1 && first == 0xF0 ? 0x90 : 0x80;
      const unsigned high = n == 1 && first == 0xED ? 0x9F : n == 1 && first == 0xF4 ? 0x8F : 0xBF;
      if (b < low || b > high) return n;
      ++n;
    }
    return n;
  }
  static bool may_go_on(std::string_view s, std::size_t n) {
    const auto first = static_cast<unsigned char>(s[0]);
    return n == s.size() && first >= 0xC2 && first <= 0xF4;
  }
  std::string taken(bool last) {
    std::string out;
    std::string_view s = waiting_;
    while (!s.empty()) {
      std::size_t n = utf8_length(s);
      if (n != 0) {
        out += s.substr(0, n);
      } else {
        n = beginning(s);
        if (!last && may_go_on(s, n)) break;
        out += "\xEF\xBF\xBD";
      }
      s.remove_prefix(n);
    }
    waiting_ = std::string(s);
    return out;
  }

  std::string waiting_;
};

}  // namespace graft::io::hf
