// SPDX-License-Identifier: Apache-2.0
// Decoders (detokenization): how the texts of tokens become text (ByteLevel, Metaspace, ByteFallback, Fuse, Strip,
// Replace), one step after the other over the list of tokens, which is joined at the end.
#pragma once
#include <graft/io/tokenizer/pretokenizer.h>
#include <graft/io/tokenizer/text_stream.h>

namespace graft::io::hf {

struct decoder_step {
  enum class kind : unsigned char { byte_level, metaspace, byte_fallback, fuse, strip, replace } what = kind::fuse;
  std::string content{};            // strip: the character that is removed; replace: what is written
  search_pattern pattern{};         // replace: what is searched for
  std::size_t start = 0, stop = 0;  // strip: how many characters at most, at the beginning and at the end
  std::string replacement{};        // of metaspace
  bool drops_first = false;         // metaspace: the first token loses its ▁
};

// The byte that a token <0xXX> stands for.
inline std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int v = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    v = v * 16 + digit;
  }
  return static_cast<char>(v);
}
// Bytes as text; what is not UTF-8 becomes U+FFFD.
inline std::string as_text(std::string_view bytes) {
  text_stream all;
  std::string out = all.feed(bytes);
  return out += all.finish();
}
inline std::string replaced(std::string_view s, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t last = 0;
  for (std::size_t at = s.find(from); at != s.npos; at = s.find(from, last)) {
    out.append(s.substr(last, at - last)).append(to);
    last = at + from.size();
  }
  return out.append(s.substr(last));
}
inline std::string without_ends(const decoder_step& step, std::string_view s) {
  for (std::size_t k = 0; k < step.start && s.starts_with(step.content); ++k) s.remove_prefix(step.content.size());
  for (std::size_t k = 0; k < step.stop && s.ends_with(step.content); ++k) s.remove_suffix(step.content.size());
  return std::string(s);
}
// Returns what one token adds to a text that has begun: its bytes, which may be a part of a character.
inline std::string bytes_of_token(const std::vector<decoder_step>& steps, std::string_view token) {
  using kind = decoder_step::kind;
  std::string now(token);
  std::string next;
  for (const decoder_step& step : steps) {
    switch (step.what) {
      case kind::byte_level: return bytes_written_as(now).value_or(now);
      case kind::metaspace: now = replaced(now, step.replacement, " "); break;
      case kind::byte_fallback:
        if (const auto b = byte_of(now)) return std::string(1, *b);
        break;
      case kind::fuse: return now;  // later steps act on the joined text
      case kind::strip: now = without_ends(step, now); break;
      case kind::replace:
        if (step.pattern.replace_all(now, step.content, next)) now = next;
        break;
    }
  }
  return now;
}

// Applies one step to the list of tokens.
inline void decode_step(const decoder_step& step, std::vector<std::string>& tokens) {
  using kind = decoder_step::kind;
  std::vector<std::string> out;
  std::string all;
  switch (step.what) {
    case kind::byte_level:
      for (const std::string& t : tokens) all += bytes_written_as(t).value_or(t);
      out.push_back(as_text(all));
      break;
    case kind::metaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i)
        out.push_back(replaced(tokens[i], step.replacement, i == 0 && step.drops_first ? "" : " "));
      break;
    case kind::byte_fallback: {
      // A run of bytes that is no UTF-8 becomes U+FFFD for each byte.
      const auto flush = [&] {
        if (all.empty()) return;
        if (is_utf8(all))
          out.push_back(all);
        else
          for (std::size_t k = 0; k < all.size(); ++k) out.emplace_back("\xEF\xBF\xBD");
        all.clear();
      };
      for (std::string& t : tokens) {
        if (const auto b = byte_of(t)) {
          all += *b;
          continue;
        }
        flush();
        out.push_back(std::move(t));
      }
      flush();
      break;
    }
    case kind::fuse:
      for (const std::string& t : tokens) all += t;
      out.push_back(std::move(all));
      break;
    case kind::strip:
      for (const std::string& t : tokens) out.push_back(without_ends(step, t));
      break;
    case kind::replace:
      for (const std::string& t : tokens) {
        if (!step.pattern.replace_all(t, step.content, all)) all = t;
        out.push_back(all);
      }
      break;
  }
  tokens.swap(out);
}

}  // namespace graft::io::hf
