// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text to token ids and back, by BPE or Unigram, as a tokenizer.json or a GGUF file describes it.
//     result<hf::tokenizer> t = hf::read_tokenizer(folder);
//     result<std::vector<std::int64_t>> ids = t->encode("Hello");
//     std::string text = t->decode(*ids);
#pragma once
#include <graft/core/library.h>
#include <graft/io/tokenizer/added_tokens.h>
#include <graft/io/tokenizer/decoder.h>
#include <graft/io/tokenizer/pretokenizer.h>
#include <graft/io/tokenizer/unigram.h>

#include <variant>

namespace graft::io::hf {

// The content of a tokenizer.json, which tokenizer/tokenizer_file.h reads.
struct tokenizer_model {
  std::vector<normalizer_step> normalizer;
  std::vector<pretokenizer_step> pretokenizer;
  std::variant<bpe_model, unigram_model> model;
  added_token_finder as_written, after_normalizer;
  std::vector<decoder_step> decoder;
  bool joins_with_spaces = false;           // tokens are joined with spaces where there is no decoder
  std::vector<std::string> tokens;          // as the vocabulary writes them, by id
  std::vector<std::string> bytes_of;        // what a token adds to a text, by id
  std::vector<bool> known, special;         // by id
  std::vector<std::int64_t> before, after;  // special tokens added around a text (TemplateProcessing)

  // Numbers a token; false for a number that is larger than a vocabulary can be.
  bool put(std::uint64_t id, std::string token, bool is_special) {
    if (id > 100'000'000) return false;
    const auto i = static_cast<std::size_t>(id);
    if (i >= known.size()) {
      if (i >= known.capacity()) {
        const std::size_t reserved = i + i / 2 + 16;
        known.reserve(reserved), special.reserve(reserved), tokens.reserve(reserved);
      }
      known.resize(i + 1), special.resize(i + 1), tokens.resize(i + 1);
    }
    known[i] = true, special[i] = is_special, tokens[i] = std::move(token);
    return true;
  }
  void finish() {
    bytes_of.reserve(tokens.size());
    for (const std::string& t : tokens) bytes_of.push_back((joins_with_spaces ? " " : "") + bytes_of_token(decoder, t));
  }
};

class tokenizer {
 public:
  explicit tokenizer(tokenizer_model model) : m_(std::move(model)) { m_.finish(); }

  // Encodes UTF-8 text. `add_special` adds the special tokens of the post-processor (bos and the like).
  result<std::vector<std::int64_t>> encode(std::string_view text, bool add_special = true) const;

  // Decodes token ids; ids that do not exist are skipped, as huggingface/tokenizers does.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special = true) const;

  // What one token adds to a text that has begun. It may be an incomplete character; text_stream assembles characters
  // from several tokens. Rules for the beginning of a text (the space that Metaspace and Strip remove) are decode()'s.
  std::string_view bytes(std::int64_t id, bool skip_special = true) const {
    return shown(id, skip_special) ? m_.bytes_of[static_cast<std::size_t>(id)] : std::string_view();
  }
  std::size_t size() const { return m_.known.size(); }

 private:
  bool shown(std::int64_t id, bool skip_special) const {
    const auto i = static_cast<std::size_t>(id);
    return id >= 0 && i < m_.known.size() && m_.known[i] && !(skip_special && m_.special[i]);
  }

  tokenizer_model m_;
};

}  // namespace graft::io::hf

#if GRAFT_BODIES

namespace graft::io::hf {

// One call of encode(): the steps in their order, with the first error.
template <class Encoder> struct encoding {
  const tokenizer_model& m;
  Encoder words;
  pretokenizer pieces;
  std::vector<std::int64_t> ids{};
  status good = ok;

  template <class Model>
  encoding(const tokenizer_model& all, const Model& model) : m(all), words(model), pieces(all.pretokenizer) {}

  void run(std::string_view text) {
    const auto token = [&](const added_token& t) { ids.push_back(t.id); };
    m.as_written.split(
        text, [&](std::string_view raw, std::size_t from) { section(raw, from == 0); }, token);
  }
  void section(std::string_view raw, bool at_start) {
    if (!good) return;
    std::optional<std::string> normal;
    if (!m.normalizer.empty()) {
      normal = normalize(m.normalizer, raw);
      if (!normal) return too_long("a Replace of the normalizer");
    }
    m.after_normalizer.split(
        normal ? std::string_view(*normal) : raw,
        [&](std::string_view part, std::size_t from) { plain(part, at_start && from == 0); },
        [&](const added_token& t) { ids.push_back(t.id); });
  }
  void plain(std::string_view text, bool at_start) {
    const bool finished = pieces.split(text, at_start, [&](std::string_view word) {
      if (good) good = words.append(word, ids);
    });
    if (!finished) too_long("a Split of the pre_tokenizer");
  }
  void too_long(const char* part) {
    if (good)
      good = fail("the regular expression of ", part,
                  " takes too many steps on this text, expected a pattern "
                  "whose time is proportional to the text");
  }
};

GRAFT_LIBRARY result<std::vector<std::int64_t>> tokenizer::encode(std::string_view text, bool add_special) const {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = utf8_length(text.substr(i));
    if (n == 0) return fail("the text is not UTF-8 at byte ", static_cast<long long>(i));
    i += n;
  }
  return guarded("the text", [&]() -> result<std::vector<std::int64_t>> {
    const auto with = [&](auto now) -> result<std::vector<std::int64_t>> {
      if (add_special) now.ids = m_.before;
      now.run(text);
      if (!now.good) return now.good.failure();
      if (add_special) now.ids.insert(now.ids.end(), m_.after.begin(), m_.after.end());
      return std::move(now.ids);
    };
    if (const auto* bpe = std::get_if<bpe_model>(&m_.model)) return with(encoding<bpe_encoder>(m_, *bpe));
    return with(encoding<unigram_encoder>(m_, *std::get_if<unigram_model>(&m_.model)));
  });
}

GRAFT_LIBRARY std::string tokenizer::decode(std::span<const std::int64_t> ids, bool skip_special) const {
  std::string out;
  // Byte-level tokens are bytes whatever stands around them.
  if (m_.decoder.size() == 1 && m_.decoder[0].what == decoder_step::kind::byte_level) {
    for (const std::int64_t id : ids) out += bytes(id, skip_special);
    return as_text(out);
  }
  std::vector<std::string> parts;
  for (const std::int64_t id : ids)
    if (shown(id, skip_special)) parts.push_back(m_.tokens[static_cast<std::size_t>(id)]);
  for (const decoder_step& step : m_.decoder) decode_step(step, parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && m_.joins_with_spaces) out += ' ';
    out += parts[i];
  }
  return out;
}

}  // namespace graft::io::hf
#endif
