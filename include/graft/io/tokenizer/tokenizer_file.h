// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json (huggingface/tokenizers): BPE and Unigram models with their normalizers, pretokenizers, decoders
// and post-processors. Parts of other kinds are refused by name, because ignoring them would give other tokens.
#pragma once
#include <graft/core/library.h>
#include <graft/io/tokenizer/tokenizer.h>

namespace graft::io::hf {

GRAFT_LIBRARY result<tokenizer> parse_tokenizer(std::string_view content, std::string_view file);
// `where` is a folder or the tokenizer.json in it.
GRAFT_LIBRARY result<tokenizer> read_tokenizer(const std::string& where);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/json/config_reader.h>
#include <graft/io/tokenizer/split_regex_parser.h>

#include <set>

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
  // Appends the elements of a component of type Sequence, also of Sequences within it, or the component itself.
  void sequence(const json& part, const char* key, std::vector<const json*>& all) {
    if (!is(part, "Sequence")) return all.push_back(&part);
    const json* list = part.find(key);
    if (list == nullptr || !list->is_list()) return reject("a Sequence has no list '", key, "', expected its parts");
    for (const json& e : list->items) sequence(e, key, all);
  }
  std::vector<const json*> parts(const char* component, const char* key) {
    std::vector<const json*> all;
    if (const json* v = set(top, component); v != nullptr) sequence(*v, key, all);
    return all;
  }
  static bool is(const json& part, const char* name) {
    const json* type = part.is_object() ? part.find("type") : nullptr;
    return type != nullptr && type->says(name);
  }

  std::string word(const json& part, const char* component, const char* key) {
    const json* v = part.find(key);
    if (v == nullptr || !v->is_string())
      return reject("the ", component, ' ', kind(part), " has no text '", key, "', expected one"), std::string();
    return v->word;
  }
  std::size_t count(const json& part, const char* component, const char* key) {
    const json* v = part.find(key);
    if (v == nullptr || !v->is_unsigned() || v->whole > 1'000'000)
      return reject("the ", component, ' ', kind(part), " has no '", key, "' up to 1000000, expected a number"), 0U;
    return static_cast<std::size_t>(v->whole);
  }
  search_pattern pattern(const json& part, const char* component) {
    const json* v = part.find("pattern");
    const json* literal = v != nullptr && v->is_object() ? v->find("String") : nullptr;
    const json* regex = v != nullptr && v->is_object() ? v->find("Regex") : nullptr;
    if (literal != nullptr && literal->is_string() && !literal->word.empty())
      return {.literal = literal->word, .regex = {}};
    if (regex == nullptr || !regex->is_string())
      return reject("the ", component, ' ', kind(part),
                    " has no 'pattern', expected {\"String\": a text} or {\"Regex\": a regular expression}"),
             search_pattern{};
    return compiled(regex->word, component);
  }
  search_pattern compiled(std::string_view regex, const char* component) {
    const result<shared_regex> made = parse_split_regex(regex);
    if (!made) return reject("the ", component, " cannot be used: ", made.message()), search_pattern{};
    return {.literal = {}, .regex = *made};
  }

  void normalizer() {
    using step = normalizer_step::kind;
    constexpr const char* forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const std::vector<const json*> all = parts("normalizer", "normalizers");
    for (const json* part : all) {
      normalizer_step n;
      bool known = false;
      for (std::size_t k = 0; k < 4; ++k)
        if (is(*part, forms[k])) n.form = static_cast<normal_form>(k), known = true;
      if (is(*part, "Prepend")) {
        n.what = step::prepend, n.content = word(*part, "normalizer", "prepend");
      } else if (is(*part, "Replace")) {
        n.what = step::replace, n.content = word(*part, "normalizer", "content");
        n.pattern = pattern(*part, "normalizer");
      } else if (is(*part, "Lowercase")) {
        n.what = step::lowercase;
      } else if (is(*part, "StripAccents")) {
        n.what = step::strip_accents;
      } else if (is(*part, "Strip")) {
        n.what = step::strip;
        n.left = says_true(*part, "strip_left", true), n.right = says_true(*part, "strip_right", true);
      } else if (!known) {
        return reject("the normalizer ", kind(*part), " is not supported, expected NFC, NFD, NFKC, NFKD, Prepend, ",
                      "Replace, Lowercase, Strip, StripAccents or a Sequence of them");
      }
      out.normalizer.push_back(std::move(n));
    }
  }

  split_behavior behavior(const json& part, bool needed) {
    constexpr const char* names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json* v = part.find("behavior");
    if (v == nullptr && !needed) return split_behavior::isolated;
    for (std::size_t k = 0; k < 5; ++k)
      if (v != nullptr && v->says(names[k])) return static_cast<split_behavior>(k);
    reject("the pre_tokenizer ", kind(part), " has the behavior ", v != nullptr ? found(*v) : text("none"),
           ", expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
    return split_behavior::isolated;
  }
  // Reads where Metaspace prepends; older files say add_prefix_space instead.
  prepend_scheme scheme(const json& part, const char* component) {
    constexpr const char* names[] = {"always", "first", "never"};
    const json* v = set(part, "prepend_scheme");
    if (v == nullptr) return says_true(part, "add_prefix_space", true) ? prepend_scheme::always : prepend_scheme::never;
    for (std::size_t k = 0; k < 3; ++k)
      if (v->says(names[k])) return static_cast<prepend_scheme>(k);
    reject("the ", component, " Metaspace has the prepend_scheme ", found(*v), ", expected always, first or never");
    return prepend_scheme::never;
  }
  std::string replacement(const json& part, const char* component) {
    std::string r = word(part, component, "replacement");
    if (!problem && (r.empty() || first_character(r).bytes != r.size()))
      reject("the ", component, " Metaspace has the replacement ", in_quotes(r), ", expected one character");
    return r;
  }
  void pre_tokenizer() {
    for (const json* part : parts("pre_tokenizer", "pretokenizers")) {
      pretokenizer_step p;
      p.splits = true;
      if (is(*part, "ByteLevel")) {
        p.what = pretokenizer_step::kind::byte_level;
        p.splits = says_true(*part, "use_regex", true);
        if (p.splits) p.pattern = compiled(byte_level_regex, "pre_tokenizer ByteLevel");
        if (says_true(*part, "add_prefix_space", true)) p.prefix = prepend_scheme::always;
      } else if (is(*part, "Metaspace")) {
        p.what = pretokenizer_step::kind::metaspace;
        p.replacement = replacement(*part, "pre_tokenizer"), p.prefix = scheme(*part, "pre_tokenizer");
        p.splits = says_true(*part, "split", true);
        p.pattern.literal = p.replacement, p.behavior = split_behavior::merged_with_next;
      } else if (is(*part, "Split")) {
        p.pattern = pattern(*part, "pre_tokenizer"), p.behavior = behavior(*part, true);
        p.invert = says_true(*part, "invert", false);
      } else if (is(*part, "Digits")) {
        p.characters = code_table(unicode::category("N") | code_set::of(later_numbers));
        if (!says_true(*part, "individual_digits", false)) p.behavior = split_behavior::contiguous;
      } else if (is(*part, "Punctuation")) {
        p.characters = code_table(code_set::of(punctuation)), p.behavior = behavior(*part, false);
      } else if (is(*part, "WhitespaceSplit")) {
        p.characters = code_table(unicode::spaces()), p.behavior = split_behavior::removed;
      } else if (is(*part, "Whitespace")) {
        p.pattern = compiled(whitespace_regex, "pre_tokenizer Whitespace");
        p.invert = true, p.behavior = split_behavior::removed;
      } else {
        return reject("the pre_tokenizer ", kind(*part),
                      " is not supported, expected ByteLevel, Metaspace, Split, Digits, ",
                      "Punctuation, Whitespace, WhitespaceSplit or a Sequence of them");
      }
      if (problem) return;
      out.pretokenizer.push_back(std::move(p));
    }
  }

  void put(std::uint64_t id, std::string token, bool special) {
    if (!out.put(id, std::move(token), special))
      reject("the token number ", number(id), " is larger than a vocabulary can be");
  }
  void vocabulary(const json& vocab, token_ids& ids) {
    ids.reserve(vocab.keys.size());
    for (std::size_t k = 0; k < vocab.keys.size() && !problem; ++k) {
      if (!vocab.items[k].is_unsigned())
        return reject("the token ", in_quotes(vocab.keys[k]), " has no number but ", found(vocab.items[k]));
      put(vocab.items[k].whole, vocab.keys[k], false);
      if (!problem) ids.emplace(vocab.keys[k], static_cast<std::uint32_t>(vocab.items[k].whole));
    }
  }
  // Reads a merge, written as "a b" or, in newer files, as ["a", "b"].
  void merge(const json& m, std::size_t rank, bpe_model& bpe) {
    std::string_view a, b;
    if (m.is_list() && m.items.size() == 2 && m.items[0].is_string() && m.items[1].is_string())
      a = m.items[0].word, b = m.items[1].word;
    else if (const std::size_t space = m.is_string() ? m.word.find(' ') : m.word.npos; space != m.word.npos)
      a = std::string_view(m.word).substr(0, space), b = std::string_view(m.word).substr(space + 1);
    if (!add_merge(bpe, a, b, rank))
      reject("merge ", number(rank), " (", in_quotes(a), " and ", in_quotes(b), ") is not of tokens that exist");
  }
  void bpe(const json& v) {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json* affix = set(v, key); affix != nullptr && !affix->says(""))
        return reject('\'', key, "' is ", found(*affix), ", expected none: affixes of BPE are not supported");
    if (const json* dropout = set(v, "dropout"); dropout != nullptr && !(dropout->is_number() && dropout->real == 0))
      return reject("'dropout' is ", found(*dropout), ", expected none: tokens would be drawn");
    const json *vocab = v.find("vocab"), *merges = v.find("merges");
    if (vocab == nullptr || !vocab->is_object() || merges == nullptr || !merges->is_list())
      return reject("the model has no 'vocab' or no 'merges', expected {token: number} and a list");
    bpe_model& made = out.model.emplace<bpe_model>();
    made.ignores_merges = says_true(v, "ignore_merges", false);
    made.byte_fallback = says_true(v, "byte_fallback", false), made.fuse_unk = says_true(v, "fuse_unk", false);
    if (const json* unk = set(v, "unk_token"); unk != nullptr) made.unk_token = word(v, "model", "unk_token");
    vocabulary(*vocab, made.ids);
    made.merges.reserve(merges->items.size());
    for (std::size_t rank = 0; rank < merges->items.size() && !problem; ++rank) merge(merges->items[rank], rank, made);
    made.finish();
  }
  void unigram(const json& v) {
    const json *vocab = v.find("vocab"), *unk = set(v, "unk_id");
    if (vocab == nullptr || !vocab->is_list() || vocab->items.empty())
      return reject("the model Unigram has no 'vocab', expected a list of [token, score]");
    unigram_model& made = out.model.emplace<unigram_model>();
    made.byte_fallback = says_true(v, "byte_fallback", false);
    made.ids.reserve(vocab->items.size());
    std::size_t bytes = 0;
    for (const json& e : vocab->items) bytes += e.is_list() && !e.items.empty() ? e.items[0].word.size() : 0;
    made.tokens.reserve(bytes);
    for (std::size_t id = 0; id < vocab->items.size() && !problem; ++id) {
      const json& e = vocab->items[id];
      if (!e.is_list() || e.items.size() != 2 || !e.items[0].is_string() || !e.items[1].is_number())
        return reject("entry ", number(id), " of 'vocab' is ", found(e), ", expected [token, score]");
      const std::string& token = e.items[0].word;
      if (token.size() > longest_unigram_token)
        return reject("the token ", in_quotes(token), " has ", number(token.size()), " bytes, expected at most ",
                      number(longest_unigram_token));
      put(id, token, false);
      made.scores.push_back(e.items[1].real);
      made.ids.insert_or_assign(token, static_cast<std::uint32_t>(id));
      made.tokens.add(token, static_cast<std::uint32_t>(id));
    }
    made.least_score = *std::min_element(made.scores.begin(), made.scores.end());
    made.byte_tokens = byte_tokens_of(made.ids);
    if (unk == nullptr) return;
    if (!unk->is_unsigned() || unk->whole >= vocab->items.size())
      return reject("'unk_id' is ", found(*unk), ", expected the number of one of the ", number(vocab->items.size()),
                    " tokens");
    made.unk = static_cast<std::uint32_t>(unk->whole);
  }
  void model() {
    const json* v = set(top, "model");
    if (v == nullptr || !v->is_object()) return reject("the key 'model' is missing, expected a BPE or Unigram model");
    const json* type = set(*v, "type");
    // Old files do not say their type; the vocabulary of a Unigram is a list, because its tokens have scores.
    const json* const vocabulary = v->find("vocab");
    const bool has_scores = vocabulary != nullptr && vocabulary->is_list();
    if (type != nullptr ? type->says("Unigram") : has_scores) return unigram(*v);
    if (type != nullptr && !type->says("BPE"))
      return reject("the model ", found(*type), " is not supported, expected BPE or Unigram");
    bpe(*v);
  }

  void added() {
    const json* list = set(top, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_list()) return reject("'added_tokens' is ", found(*list), ", expected a list");
    std::set<std::string, std::less<>> special_texts;
    for (const json& t : list->items) {
      const json *content = t.is_object() ? t.find("content") : nullptr, *id = t.is_object() ? t.find("id") : nullptr;
      if (content == nullptr || id == nullptr || !content->is_string() || !id->is_unsigned())
        return reject("'added_tokens' holds an entry without a content or a number");
      if (content->word.size() > longest_unigram_token)
        return reject("the added token ", in_quotes(content->word), " has ", number(content->word.size()),
                      " bytes, expected at most ", number(longest_unigram_token));
      const bool special = says_true(t, "special", false), normal = says_true(t, "normalized", !special);
      std::optional<std::string> written = content->word;
      if (normal) written = normalize(out.normalizer, content->word);
      if (!written) return reject("the added token ", in_quotes(content->word), " takes too many steps to normalize");
      if (special) special_texts.insert(content->word);
      put(id->whole, *written, special);  // decode() shows it as it is normalized, as huggingface/tokenizers does
      if (problem) return;
      (normal ? out.after_normalizer : out.as_written)
          .add({std::move(*written), static_cast<std::uint32_t>(id->whole), special, says_true(t, "single_word", false),
                says_true(t, "lstrip", false), says_true(t, "rstrip", false)});
    }
    // A list of [token, score] may hold a text twice; decode() leaves out special tokens by their text.
    for (std::size_t i = 0; i < out.tokens.size() && !special_texts.empty(); ++i)
      if (special_texts.contains(out.tokens[i])) out.special[i] = true;
  }
  // Reads the special tokens that TemplateProcessing adds before and after a single text.
  void template_processing(const json& part) {
    const json *single = part.find("single"), *table = part.find("special_tokens");
    if (single == nullptr || !single->is_list()) return reject("the post_processor TemplateProcessing has no 'single'");
    bool text_seen = false;
    std::vector<std::int64_t> before, after;
    for (const json& piece : single->items) {
      if (const json* text = piece.is_object() ? piece.find("Sequence") : nullptr; text != nullptr) {
        const json* which = text->is_object() ? text->find("id") : nullptr;
        if (text_seen || which == nullptr || !which->says("A"))
          return reject("'single' of the post_processor TemplateProcessing is not about one text, A, expected it once");
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
        if (!id.is_unsigned() || id.whole > 100'000'000) return reject("the post_processor has a token ", found(id));
        (text_seen ? after : before).push_back(static_cast<std::int64_t>(id.whole));
      }
    }
    if (!text_seen) return reject("the post_processor TemplateProcessing leaves the text out");
    out.before.insert(out.before.begin(), before.begin(), before.end());
    out.after.insert(out.after.end(), after.begin(), after.end());
  }
  void post_processor() {
    for (const json* part : parts("post_processor", "processors")) {
      if (is(*part, "TemplateProcessing"))
        template_processing(*part);
      else if (!is(*part, "ByteLevel"))  // as a post-processor ByteLevel changes offsets only
        return reject("the post_processor ", kind(*part),
                      " is not supported, expected ByteLevel, TemplateProcessing or a Sequence of them");
    }
  }
  void decoder() {
    using step = decoder_step::kind;
    out.joins_with_spaces = set(top, "decoder") == nullptr;
    for (const json* part : parts("decoder", "decoders")) {
      decoder_step d;
      if (is(*part, "ByteLevel")) {
        d.what = step::byte_level;
      } else if (is(*part, "ByteFallback")) {
        d.what = step::byte_fallback;
      } else if (is(*part, "Fuse")) {
        d.what = step::fuse;
      } else if (is(*part, "Metaspace")) {
        d.what = step::metaspace, d.replacement = replacement(*part, "decoder");
        d.drops_first = scheme(*part, "decoder") != prepend_scheme::never;
      } else if (is(*part, "Replace")) {
        d.what = step::replace, d.pattern = pattern(*part, "decoder"), d.content = word(*part, "decoder", "content");
      } else if (is(*part, "Strip")) {
        d.what = step::strip, d.content = word(*part, "decoder", "content");
        d.start = count(*part, "decoder", "start"), d.stop = count(*part, "decoder", "stop");
        if (!problem && (d.content.empty() || first_character(d.content).bytes != d.content.size()))
          return reject("the decoder Strip has the content ", in_quotes(d.content), ", expected one character");
      } else {
        return reject("the decoder ", kind(*part),
                      " is not supported, expected ByteLevel, Metaspace, ByteFallback, Fuse, ",
                      "Strip, Replace or a Sequence of them");
      }
      if (problem) return;
      out.decoder.push_back(std::move(d));
    }
  }
  void all() {
    for (const char* key : {"truncation", "padding"})
      if (const json* v = set(top, key); v != nullptr)
        reject('\'', key, "' is ", found(*v), ", expected null: lengths are the caller's");
    normalizer();
    if (!problem) pre_tokenizer();
    if (!problem) model();
    if (!problem) added();
    if (!problem) post_processor();
    if (!problem) decoder();
  }
};

GRAFT_LIBRARY result<tokenizer> parse_tokenizer(std::string_view content, std::string_view file) {
  const result<json> parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return guarded(file, [&]() -> result<tokenizer> {
    tokenizer_reader in{*parsed, std::string(file)};
    in.all();
    if (in.problem) return *in.problem;
    return tokenizer(std::move(in.out));
  });
}

GRAFT_LIBRARY result<tokenizer> read_tokenizer(const std::string& where) {
  const std::string file = is_directory(where) ? where + "/tokenizer.json" : where;
  const result<std::vector<std::byte>> bytes = read_file(file, 200'000'000);
  if (!bytes) return bytes.failure();
  return parse_tokenizer(as_chars(*bytes), file);
}

}  // namespace graft::io::hf
#endif
