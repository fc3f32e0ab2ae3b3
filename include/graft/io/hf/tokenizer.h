// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, as the tokenizer.json of a model says (byte-level BPE: GPT-2, Llama 3, Qwen).
//     result<hf::tokenizer> t = hf::read_tokenizer(folder);
//     result<std::vector<std::int64_t>> ids = t->encode("Hello");
//     std::string text = t->decode(*ids);
#pragma once
#include <graft/core/library.h>
#include <graft/io/hf/added_tokens.h>
#include <graft/io/hf/byte_pairs.h>
#include <graft/io/hf/text_stream.h>
#include <graft/io/hf/word_split.h>
#include <graft/io/wording.h>

namespace graft::io::hf {

// Everything a file says; read_tokenizer fills it.
struct tokenizer_model {
  byte_pairs pairs;
  split_rule rule = split_rule::gpt2;
  bool space_first = false, to_nfc = false;
  added_token_finder as_written, after_normalising;
  std::vector<std::string> bytes_of;        // by token
  std::vector<bool> known, special;         // by token
  std::vector<std::int64_t> before, after;  // what the file puts around a text
};

class tokenizer {
 public:
  explicit tokenizer(tokenizer_model model) : m_(std::move(model)) {}

  // With the special tokens that the file puts around a text, or without.
  result<std::vector<std::int64_t>> encode(std::string_view text, bool add_special = true) const;

  // Tokens that do not exist are left out, as in the original.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special = true) const {
    text_stream text;
    std::string out;
    for (const std::int64_t id : ids) out += text.feed(bytes(id, skip_special));
    return out += text.finish();
  }
  // The bytes of one token, which may be part of a character: text_stream puts them together.
  std::string_view bytes(std::int64_t id, bool skip_special = true) const {
    const auto i = static_cast<std::size_t>(id);
    if (id < 0 || i >= m_.known.size() || !m_.known[i] || (skip_special && m_.special[i])) return {};
    return m_.bytes_of[i];
  }
  std::size_t size() const { return m_.known.size(); }

 private:
  void encode_part(std::string_view raw, piece_encoder& pieces, std::vector<std::int64_t>& ids) const;
  void encode_plain(std::string_view text, piece_encoder& pieces, std::vector<std::int64_t>& ids) const;

  tokenizer_model m_;
};

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/nfc.h>

namespace graft::io::hf {

GRAFT_LIBRARY result<std::vector<std::int64_t>> tokenizer::encode(std::string_view text, bool add_special) const {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = utf8_length(text.substr(i));
    if (n == 0) return fail("the text is not UTF-8 at byte ", static_cast<long long>(i));
    i += n;
  }
  return guarded("the text", [&]() -> result<std::vector<std::int64_t>> {
    std::vector<std::int64_t> ids;
    if (add_special) ids = m_.before;
    piece_encoder pieces(m_.pairs);
    m_.as_written.split(
        text, [&](std::string_view part) { encode_part(part, pieces, ids); },
        [&](const added_token& t) { ids.push_back(t.id); });
    if (add_special) ids.insert(ids.end(), m_.after.begin(), m_.after.end());
    return ids;
  });
}

GRAFT_LIBRARY void tokenizer::encode_part(std::string_view raw, piece_encoder& pieces,
                                          std::vector<std::int64_t>& ids) const {
  const std::string normal = m_.to_nfc && !looks_normal(raw) ? normalized_nfc(raw) : std::string();
  m_.after_normalising.split(
      normal.empty() ? raw : normal, [&](std::string_view part) { encode_plain(part, pieces, ids); },
      [&](const added_token& t) { ids.push_back(t.id); });
}
GRAFT_LIBRARY void tokenizer::encode_plain(std::string_view text, piece_encoder& pieces,
                                           std::vector<std::int64_t>& ids) const {
  std::string spaced;
  if (m_.space_first && !text.starts_with(' ')) text = spaced.append(" ").append(text);
  word_splitter words(text, m_.rule);
  for (std::string_view w = words.next(); !w.empty(); w = words.next()) pieces.append(w, ids);
}

}  // namespace graft::io::hf
#endif
