// SPDX-License-Identifier: Apache-2.0
// What is fuzzed of tokenizer.json: one that is read encodes and decodes texts, and every token that it makes exists.
#pragma once
#include <graft/io/tokenizer/tokenizer_file.h>

#include <algorithm>

namespace fuzz {

inline bool feed_tokenizer(std::string_view content) {
  using namespace graft;
  const result<io::hf::tokenizer> t = io::hf::parse_tokenizer(content, "fuzz/tokenizer.json");
  if (!t) return *t.message() != '\0';
  for (const char* text :
       {"", "Hello, world!  123", " <s>H\xC3\xB6llo\n\tyou</s>", "\xE6\x97\xA5\xE6\x9C\xAC\xF0\x9F\x98\x80"}) {
    const result<std::vector<std::int64_t>> ids = t->encode(text);
    if (!ids && *ids.message() == '\0') return false;
    if (!ids) continue;
    if (std::any_of(ids->begin(), ids->end(), [](std::int64_t id) { return id < 0; })) return false;
    static_cast<void>(t->decode(*ids));
  }
  static_cast<void>(t->decode(std::vector<std::int64_t>{-1, 0, 1, 1'000'000'000'000}));
  return true;
}

}  // namespace fuzz
