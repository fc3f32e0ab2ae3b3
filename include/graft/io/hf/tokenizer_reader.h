// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer.json, one by one; what is not byte-level BPE is refused by its name.
#pragma once
#include <graft/io/config_reader.h>
#include <graft/io/hf/byte_alphabet.h>
#include <graft/io/hf/nfc.h>
#include <graft/io/hf/tokenizer.h>

namespace graft::io::hf {

struct tokenizer_reader {
  const json& top;
  std::string file;
  tokenizer_model out{};
  std::optional<error> problem{};

  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(file, parts...);
  }
  static const json* set(const json& in, const char* key) {
    const json* v = in.find(key);
    return v != nullptr && !v->is_null() ? v : nullptr;
  }
  static bool says_true(const json& in, const char* key, bool otherwise) {
    const json* v = set(in, key);
    return v == nullptr ? otherwise : v->is_boolean() && v->flag;
  }
  text kind(const json& part) const {
    const json* type = part.is_object() ? part.find("type") : nullptr;
    return type != nullptr ? found(*type) : text("without a type");
  }
  // The parts of a Sequence, or the part itself.
  static std::vector<const json*> sequence(const json& part, const char* key) {
    const json* type = part.is_object() ? part.find("type") : nullptr;
    const json* list = type != nullptr && type->says("Sequence") ? part.find(key) : nullptr;
    if (list == nullptr || !list->is_list()) return {&part};
    std::vector<const json*> all;
    for (const json& e : list->items) all.push_back(&e);
    return all;
  }
  static bool is(const json& part, const char* name) {
    const json* type = part.is_object() ? part.find("type") : nullptr;
    return type != nullptr && type->says(name);
  }

  void normalizer() {
    const json* v = set(top, "normalizer");
    if (v == nullptr) return;
    for (const json* part : sequence(*v, "normalizers")) {
      if (!is(*part, "NFC")) return reject("the normalizer ", kind(*part), " is not supported, expected NFC or none");
      out.to_nfc = true;
    }
  }
  void pre_tokenizer() {
    const json* v = set(top, "pre_tokenizer");
    if (v == nullptr) return reject("there is no pre_tokenizer, expected ByteLevel: other kinds are not supported");
    const std::vector<const json*> parts = sequence(*v, "pretokenizers");
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (!is(*parts[i], i + 1 == parts.size() ? "ByteLevel" : "Split") || i > 1)
        return reject("the pre_tokenizer ", kind(*parts[i]),
                      " is not supported here, expected ByteLevel, or Split and "
                      "then ByteLevel");
    if (parts.empty()) return reject("the pre_tokenizer is an empty Sequence, expected ByteLevel");
    const json& level = *parts.back();
    out.space_first = says_true(level, "add_prefix_space", true);
    const bool cuts = says_true(level, "use_regex", true);
    if (parts.size() == 1 && !cuts) return reject("the pre_tokenizer ByteLevel does not cut words (use_regex false)");
    if (parts.size() == 1) return;
    if (cuts || out.space_first)
      return reject("the pre_tokenizer ByteLevel behind Split has use_regex or add_prefix_space, expected neither");
    split(*parts[0]);
  }
  void split(const json& part) {
    const json* pattern = part.find("pattern");
    const json* regex = pattern != nullptr && pattern->is_object() ? pattern->find("Regex") : nullptr;
    if (regex == nullptr || !regex->is_word()) return reject("the pre_tokenizer Split has no Regex");
    const json* behavior = part.find("behavior");
    if (behavior == nullptr || !behavior->says("Isolated") || says_true(part, "invert", false))
      return reject("the pre_tokenizer Split is not Isolated or is inverted, which is not supported");
    const std::optional<split_rule> rule = split_rule_for(regex->word);
    if (!rule)
      return reject("the pattern ", found(*regex),
                    " of the pre_tokenizer is not one of those that are supported "
                    "(GPT-2, Llama 3, Qwen2)");
    out.rule = *rule;
  }

  void put(std::uint64_t id, std::string bytes, bool special) {
    if (id > 100'000'000) return reject("the token number ", number(id), " is larger than a vocabulary can be");
    const auto i = static_cast<std::size_t>(id);
    if (i >= out.known.size()) out.known.resize(i + 1), out.special.resize(i + 1), out.bytes_of.resize(i + 1);
    out.known[i] = true, out.special[i] = special, out.bytes_of[i] = std::move(bytes);
  }
  void vocabulary(const json& vocab) {
    out.pairs.ids.reserve(vocab.keys.size());
    for (std::size_t k = 0; k < vocab.keys.size(); ++k) {
      if (!vocab.items[k].is_whole())
        return reject("the token ", in_quotes(vocab.keys[k]), " has no number but ", found(vocab.items[k]));
      const auto id = vocab.items[k].whole;
      std::optional<std::string> bytes = bytes_written_as(vocab.keys[k]);
      if (bytes && id < std::numeric_limits<std::uint32_t>::max())
        out.pairs.ids.emplace(*bytes, static_cast<std::uint32_t>(id));
      put(id, bytes ? *bytes : vocab.keys[k], false);
    }
    for (std::size_t b = 0; b < 256; ++b) {
      const auto at = out.pairs.ids.find(std::string(1, static_cast<char>(b)));
      if (at == out.pairs.ids.end())
        return reject("the vocabulary has no token for the byte ", static_cast<int>(b), ", expected one for each byte");
      out.pairs.byte_ids[b] = at->second;
    }
  }
  // "a b", or in newer files ["a", "b"].
  void merge(const json& m, std::size_t rank) {
    std::string_view a, b;
    if (m.is_list() && m.items.size() == 2 && m.items[0].is_word() && m.items[1].is_word())
      a = m.items[0].word, b = m.items[1].word;
    else if (const std::size_t space = m.is_word() ? m.word.find(' ') : m.word.npos; space != m.word.npos)
      a = std::string_view(m.word).substr(0, space), b = std::string_view(m.word).substr(space + 1);
    const auto id = [&](std::string_view t) -> std::optional<std::uint32_t> {
      const std::optional<std::string> bytes = bytes_written_as(t);
      const auto at = bytes ? out.pairs.ids.find(*bytes) : out.pairs.ids.end();
      return at != out.pairs.ids.end() ? std::optional(at->second) : std::nullopt;
    };
    const auto left = id(a), right = id(b), both = id(std::string(a).append(b));
    if (!left || !right || !both)
      return reject("merge ", number(rank), " (", in_quotes(a), " and ", in_quotes(b), ") is not of tokens that exist");
    out.pairs.merges.add(*left, *right, {static_cast<std::uint32_t>(rank), *both});
  }
  void model() {
    const json* v = set(top, "model");
    if (v == nullptr || !v->is_object()) return reject("the key 'model' is missing, expected a BPE model");
    const json* type = set(*v, "type");
    if (type != nullptr && !type->says("BPE"))
      return reject("the model ", found(*type), " is not supported, expected BPE");
    if (says_true(*v, "byte_fallback", false))
      return reject("the model is BPE with byte_fallback, which is not supported, expected byte-level BPE");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json* affix = set(*v, key); affix != nullptr && !affix->says(""))
        return reject('\'', key, "' is ", found(*affix), ", expected none: byte-level BPE has no affixes");
    if (const json* dropout = set(*v, "dropout"); dropout != nullptr && !(dropout->is_number() && dropout->real == 0))
      return reject("'dropout' is ", found(*dropout), ", expected none: tokens would be drawn");
    out.pairs.whole_first = says_true(*v, "ignore_merges", false);
    const json *vocab = v->find("vocab"), *merges = v->find("merges");
    if (vocab == nullptr || !vocab->is_object() || merges == nullptr || !merges->is_list())
      return reject("the model has no 'vocab' or no 'merges', expected {token: number} and a list");
    vocabulary(*vocab);
    out.pairs.merges.reserve(merges->items.size());
    for (std::size_t rank = 0; rank < merges->items.size() && !problem; ++rank) merge(merges->items[rank], rank);
  }

  void added() {
    const json* list = set(top, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_list()) return reject("'added_tokens' is ", found(*list), ", expected a list");
    for (const json& t : list->items) {
      const json *content = t.is_object() ? t.find("content") : nullptr, *id = t.is_object() ? t.find("id") : nullptr;
      if (content == nullptr || id == nullptr || !content->is_word() || !id->is_whole())
        return reject("'added_tokens' holds an entry without a content or a number");
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (says_true(t, key, false))
          return reject("the added token ", in_quotes(content->word), " has '", key, "', which is not supported");
      const bool special = says_true(t, "special", false), normal = says_true(t, "normalized", !special);
      put(id->whole, bytes_written_as(content->word).value_or(content->word), special);
      if (problem) return;
      const std::string written = normal && out.to_nfc ? normalized_nfc(content->word) : content->word;
      (normal ? out.after_normalising : out.as_written).add({written, static_cast<std::uint32_t>(id->whole), special});
    }
  }
  // [CLS] and the like around one text.
  void template_processing(const json& part) {
    const json *single = part.find("single"), *table = part.find("special_tokens");
    if (single == nullptr || !single->is_list()) return reject("the post_processor TemplateProcessing has no 'single'");
    bool text_seen = false;
    for (const json& piece : single->items) {
      if (piece.is_object() && piece.find("Sequence") != nullptr) {
        text_seen = true;
        continue;
      }
      const json* token = piece.is_object() ? piece.find("SpecialToken") : nullptr;
      const json* name = token != nullptr && token->is_object() ? token->find("id") : nullptr;
      const json* entry = name != nullptr && table != nullptr && table->is_object() ? table->find(name->word) : nullptr;
      const json* ids = entry != nullptr && entry->is_object() ? entry->find("ids") : nullptr;
      if (ids == nullptr || !ids->is_list())
        return reject("the post_processor TemplateProcessing names a special token that it does not number");
      for (const json& id : ids->items) {
        if (!id.is_whole() || id.whole > 100'000'000) return reject("the post_processor has a token ", found(id));
        (text_seen ? out.after : out.before).push_back(static_cast<std::int64_t>(id.whole));
      }
    }
    if (!text_seen) reject("the post_processor TemplateProcessing leaves the text out");
  }
  void post_processor() {
    const json* v = set(top, "post_processor");
    if (v == nullptr) return;
    for (const json* part : sequence(*v, "processors")) {
      if (is(*part, "TemplateProcessing"))
        template_processing(*part);
      else if (!is(*part, "ByteLevel"))
        return reject("the post_processor ", kind(*part),
                      " is not supported, expected ByteLevel or TemplateProcessing");
    }
  }
  void decoder() {
    const json* v = set(top, "decoder");
    if (v == nullptr) return reject("there is no decoder, expected ByteLevel");
    for (const json* part : sequence(*v, "decoders"))
      if (!is(*part, "ByteLevel")) return reject("the decoder ", kind(*part), " is not supported, expected ByteLevel");
  }
  void all() {
    for (const char* key : {"truncation", "padding"})
      if (const json* v = set(top, key); v != nullptr)
        reject('\'', key, "' is ", found(*v), ", expected null: lengths are the caller's");
    normalizer();
    pre_tokenizer();
    if (!problem) model();
    if (!problem) added();
    post_processor();
    decoder();
  }
};

}  // namespace graft::io::hf
