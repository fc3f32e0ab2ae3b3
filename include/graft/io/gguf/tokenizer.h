// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a GGUF file, from its metadata tokenizer.ggml.*: byte-level BPE (model "gpt2"), whose splitting into
// words is named by tokenizer.ggml.pre, and SentencePiece BPE (model "llama"), whose tokens have scores.
//     result<gguf> file = map_gguf("model.gguf");
//     result<hf::tokenizer> t = tokenizer_of(*file);
// Names, patterns and defaults are those of llama.cpp (src/llama-vocab.cpp).
#pragma once
#include <graft/io/gguf/reader.h>
#include <graft/io/tokenizer/tokenizer.h>

namespace graft::io {

GRAFT_LIBRARY result<hf::tokenizer> tokenizer_of(const gguf& from);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/tokenizer/split_regex_parser.h>

namespace graft::io {

namespace detail {

// How a name of tokenizer.ggml.pre splits text: steps, one after the other. '#' stands for splitting into single
// digits, '$' for the regular expression of GPT-2; all others are regular expressions whose matches are isolated. Where
// llama.cpp approximates the expression of a tokenizer.json, it is that of the tokenizer.json.
struct gguf_split {
  const char* names;  // each followed by a space
  const char* steps[6];
  bool whole_words_first = false, adds_bos = false;
};
inline constexpr const char* llama3_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* qwen2_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* gpt4o_regex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* tekken_regex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* deepseek_v3_regex =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* deepseek_letters_regex =
    R"(\s?[)"
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁ"
    "Ҋ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-"
    "ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-"
    "ﬗＡ-"
    "Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
    R"(]+)";
inline constexpr const char* kana_and_han_regex =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
inline constexpr const char* han_and_hangul_regex = "[一-龥ࠀ-一가-퟿]+";
inline constexpr const char* bloom_regex = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
inline constexpr const char* jais2_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|)"
    R"(\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
inline constexpr const char* qwen35_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* youtu_regex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* bailingmoe_regex =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
inline constexpr const char* seed_coder_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr const char* minicpm5_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr gguf_split gguf_splits[] = {
    {"gpt-2 phi-2 olmo jais mpt jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum exaone4 trillion "
     "granite-docling ",
     {"$"}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ", {llama3_regex}, true, true},
    {"dbrx smaug-bpe glm4 chatglm-bpe ", {llama3_regex}},
    {"qwen2 stablelm2 hunyuan deepseek-r1-qwen megrez kormo f2llmv2 grok-2 solar-open ", {qwen2_regex}},
    {"qwen35 ", {qwen35_regex}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ", {"#", "$"}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2 ", {gpt4o_regex}},
    {"tekken ", {tekken_regex}, true, true},
    {"deepseek-v3 hunyuan-dense joyai-llm ", {R"(\p{N}{1,3})", kana_and_han_regex, deepseek_v3_regex}},
    {"deepseek-llm ",
     {"[\r\n]", deepseek_letters_regex, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)", han_and_hangul_regex,
      R"(\p{N}+)"}},
    {"deepseek-coder ", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", han_and_hangul_regex, "#"}},
    {"falcon ", {R"([\p{P}\$\+<=>\^~\|`]+)", "$", "[0-9][0-9][0-9]"}},
    {"bloom poro-chat gpt3-finnish ", {bloom_regex}},
    {"viking ", {bloom_regex, "#"}},
    {"jais-2 ", {jais2_regex}},
    {"youtu ",
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
      youtu_regex},
     true},
    {"bailingmoe bailingmoe2 llada-moe ", {bailingmoe_regex}},
    {"seed-coder ", {seed_coder_regex}},
    {"minicpm5 ", {R"(\p{N}{1,3})", minicpm5_regex}, true},
    {"laguna ", {R"([^\n]+|[\n]+)", qwen2_regex}},
    {"default ", {R"([\p{P}\$\+<=>\^~\|]+)", "$", R"(\p{N}+)", "[0-9][0-9][0-9]"}},
};

// Reads tokenizer.ggml.*; the first mistake is kept.
struct gguf_tokenizer_reader {
  const gguf& in;
  hf::tokenizer_model out{};
  std::vector<std::string_view> tokens{};
  std::vector<std::int64_t> types{};
  std::optional<error> problem{};

  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(in.file, parts...);
  }
  const gguf_value* find(const char* name) const { return in.find_value(std::string("tokenizer.ggml.") + name); }
  bool flag(const char* name, bool otherwise) {
    const gguf_value* v = find(name);
    if (v == nullptr) return otherwise;
    if (v->what != gguf_value::kind::flag) reject("'tokenizer.ggml.", name, "' is not true or false");
    return v->whole != 0;
  }
  std::string_view word(const char* name, const char* otherwise) {
    const gguf_value* v = find(name);
    if (v != nullptr && v->what == gguf_value::kind::word) return v->word;
    if (v != nullptr) reject("'tokenizer.ggml.", name, "' is no text");
    return otherwise;
  }
  std::optional<std::uint32_t> token(const char* name) {
    const gguf_value* v = find(name);
    if (v == nullptr) return {};
    if (v->what != gguf_value::kind::whole || v->whole < 0 || static_cast<std::uint64_t>(v->whole) >= tokens.size())
      return reject("'tokenizer.ggml.", name, "' is no number of a token, expected 0 to ", number(tokens.size() - 1)),
             std::nullopt;
    return static_cast<std::uint32_t>(v->whole);
  }
  // A list, with elements of the given type of GGUF.
  const gguf_value* list(const char* name, std::uint32_t type, const char* of, bool needed) {
    const gguf_value* v = find(name);
    if (v == nullptr && !needed) return nullptr;
    if (v == nullptr || v->what != gguf_value::kind::list || v->element != type)
      return reject("'tokenizer.ggml.", name, "' is ", v == nullptr ? "missing" : "another kind of value",
                    ", expected a list of ", of),
             nullptr;
    return v;
  }
  std::vector<std::string_view> texts(const char* name, bool needed) {
    std::vector<std::string_view> all;
    const gguf_value* v = list(name, 8, "texts", needed);
    if (v == nullptr) return all;
    std::string_view left = v->word;  // the reader has checked all lengths
    for (std::int64_t i = 0; i < v->whole; ++i) {
      std::uint64_t n = 0;
      std::memcpy(&n, left.data(), sizeof n);
      all.push_back(left.substr(sizeof n, static_cast<std::size_t>(n)));
      left.remove_prefix(sizeof n + static_cast<std::size_t>(n));
      if (!is_utf8(all.back()))
        return reject("entry ", number(all.size() - 1), " of 'tokenizer.ggml.", name, "' is not UTF-8"), all;
    }
    return all;
  }
  template <class Number> std::vector<Number> numbers(const char* name, std::uint32_t type, bool needed) {
    std::vector<Number> all;
    const gguf_value* v = list(name, type, "numbers", needed);
    if (v == nullptr) return all;
    if (static_cast<std::size_t>(v->whole) != tokens.size())
      return reject("'tokenizer.ggml.", name, "' has ", number(static_cast<std::uint64_t>(v->whole)),
                    " entries, expected ", number(tokens.size()), ", one for each token"),
             all;
    all.resize(tokens.size());
    std::memcpy(all.data(), v->word.data(), all.size() * sizeof(Number));
    return all;
  }

  // Files do not say which tokens take the blanks after them. llama.cpp knows those of Phi-3 by the model's name.
  bool is_phi3() const {
    const gguf_value* const v = in.find_value("general.name");
    std::string name(v != nullptr && v->what == gguf_value::kind::word ? v->word : std::string_view());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
  }

  // Types of ggml: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
  void vocabulary(hf::bpe_model& model) {
    tokens = texts("tokens", true);
    const std::vector<std::int32_t> kinds = numbers<std::int32_t>("token_type", 5, false);
    if (problem) return;
    if (tokens.empty()) return reject("'tokenizer.ggml.tokens' is empty, expected a vocabulary");
    if (tokens.size() > 100'000'000) return reject("'tokenizer.ggml.tokens' is larger than a vocabulary can be");
    model.ids.reserve(tokens.size());
    const bool strips_right = is_phi3();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int32_t kind = kinds.empty() ? 1 : kinds[i];
      const bool special = kind == 3 || kind == 2;
      out.put(i, std::string(tokens[i]), special);
      model.ids.emplace(tokens[i], static_cast<std::uint32_t>(i));
      if (kind != 2 && kind != 3 && kind != 4) continue;
      if (tokens[i].size() > hf::longest_unigram_token)
        return reject("the token ", in_quotes(tokens[i]), " is longer than an added token can be");
      const bool strips = strips_right && tokens[i] != "<unk>" && tokens[i] != "<s>" && tokens[i] != "<|endoftext|>";
      out.as_written.add({.content = std::string(tokens[i]),
                          .id = static_cast<std::uint32_t>(i),
                          .special = special,
                          .rstrip = strips});
    }
  }
  void split_by(std::string_view regex, bool to_bytes) {
    const result<hf::shared_regex> made = hf::parse_split_regex(regex);
    if (!made) return reject(made.message());
    hf::pretokenizer_step p;
    if (to_bytes) p.what = hf::pretokenizer_step::kind::byte_level;
    p.pattern.regex = *made;
    out.pretokenizer.push_back(std::move(p));
  }
  bool byte_level(hf::bpe_model& model) {
    const std::string_view pre = word("pre", "default");
    const gguf_split* split = nullptr;
    for (const gguf_split& s : gguf_splits)
      if (!pre.empty() &&
          std::string(" ").append(s.names).find(std::string(" ").append(pre) + ' ') != std::string::npos)
        split = &s;
    // Files of before April 2024 do not name their kind, which is "default".
    if (split == nullptr)
      return reject("'tokenizer.ggml.pre' is ", in_quotes(pre), ", which is not supported, expected gpt-2, llama-bpe, ",
                    "qwen2, smollm, gpt-4o, tekken, deepseek-v3 or another name of these and similar patterns; use the "
                    "model's tokenizer.json"),
             false;
    model.ignores_merges = split->whole_words_first;
    bool mapped = false;
    const auto last = std::find(std::begin(split->steps), std::end(split->steps), nullptr) - 1;
    for (const char* const* step = split->steps; step <= last; ++step) {
      const std::string_view s = *step;
      if (s == "#") {
        hf::pretokenizer_step digits;
        digits.characters = hf::code_table(hf::unicode::category("N") | hf::code_set::of(hf::later_numbers));
        out.pretokenizer.push_back(std::move(digits));
      } else {
        mapped = s == "$" && step == last;
        split_by(s == "$" ? std::string_view(hf::byte_level_regex) : s, mapped);
      }
    }
    if (!mapped) {
      hf::pretokenizer_step bytes;
      bytes.what = hf::pretokenizer_step::kind::byte_level, bytes.splits = false;
      out.pretokenizer.push_back(std::move(bytes));
    }
    if (flag("add_space_prefix", false)) out.pretokenizer.front().prefix = hf::prepend_scheme::always;
    const std::vector<std::string_view> merges = texts("merges", true);
    model.merges.reserve(merges.size());
    for (std::size_t rank = 0; rank < merges.size() && !problem; ++rank) {
      const std::size_t space = merges[rank].find(' ', 1);
      if (space == merges[rank].npos ||
          !add_merge(model, merges[rank].substr(0, space), merges[rank].substr(space + 1), rank))
        reject("entry ", number(rank), " of 'tokenizer.ggml.merges', ", in_quotes(merges[rank]),
               ", is not of two tokens that exist");
    }
    out.decoder.push_back({.what = hf::decoder_step::kind::byte_level});
    return split->adds_bos;
  }
  // SentencePiece merges the neighbors that make the token with the highest score. So each way to make a token of two
  // others is a merge, whose rank is the position of its score.
  void sentencepiece(hf::bpe_model& model) {
    const std::vector<float> scores = numbers<float>("scores", 6, true);
    if (problem) return;
    for (std::size_t i = 0; i < scores.size(); ++i)
      if (!(scores[i] == scores[i])) return reject("entry ", number(i), " of 'tokenizer.ggml.scores' is no number");
    std::vector<float> order = scores;
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    struct made_of {
      std::uint32_t left, right;
      hf::pair_table::merge merge;
    };
    std::vector<made_of> all;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view t = tokens[i];
      if (t.size() > hf::longest_unigram_token) return reject("the token ", in_quotes(t), " is too long");
      if (model.ids.find(t)->second != i) continue;
      const auto rank = std::lower_bound(order.begin(), order.end(), scores[i], std::greater<>()) - order.begin();
      for (std::size_t cut = hf::first_character(t).bytes; cut < t.size();
           cut += hf::first_character(t.substr(cut)).bytes) {
        const auto left = model.ids.find(t.substr(0, cut)), right = model.ids.find(t.substr(cut));
        if (left == model.ids.end() || right == model.ids.end()) continue;
        all.push_back({left->second, right->second, {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(i)}});
      }
    }
    model.merges.reserve(all.size());
    for (const made_of& m : all) model.merges.add(m.left, m.right, m.merge);
    model.byte_fallback = true, model.fuse_unk = true;
    if (const auto unk = token("unknown_token_id")) model.unk_token = tokens[*unk];
    const bool prefix = flag("add_space_prefix", true);
    const std::string space = "\xE2\x96\x81";
    if (prefix) out.normalizer.push_back({.what = hf::normalizer_step::kind::prepend, .content = space});
    out.normalizer.push_back({.what = hf::normalizer_step::kind::replace, .content = space, .pattern = {" ", {}}});
    using step = hf::decoder_step::kind;
    out.decoder.push_back({.what = step::replace, .content = " ", .pattern = {space, {}}});
    out.decoder.push_back({.what = step::byte_fallback});
    out.decoder.push_back({.what = step::fuse});
    if (prefix) out.decoder.push_back({.what = step::strip, .content = " ", .start = 1});
  }
  void all() {
    const std::string_view name = word("model", "");
    if (name != "gpt2" && name != "llama")
      return reject("'tokenizer.ggml.model' is ", in_quotes(name), ", expected gpt2 (byte-level BPE) or llama ",
                    "(SentencePiece BPE); use the model's tokenizer.json");
    hf::bpe_model& model = out.model.emplace<hf::bpe_model>();
    vocabulary(model);
    if (problem) return;
    bool adds_bos = true;
    if (name == "gpt2")
      adds_bos = byte_level(model);
    else
      sentencepiece(model);
    if (problem) return;
    model.finish();
    const auto bos = token("bos_token_id"), eos = token("eos_token_id");
    for (const auto id : {bos, eos})
      if (id) out.special[*id] = true;
    if (flag("add_bos_token", adds_bos) && bos) out.before.push_back(*bos);
    if (flag("add_eos_token", false) && eos) out.after.push_back(*eos);
  }
};

}  // namespace detail

GRAFT_LIBRARY result<hf::tokenizer> tokenizer_of(const gguf& from) {
  return guarded(from.file, [&]() -> result<hf::tokenizer> {
    detail::gguf_tokenizer_reader in{from};
    in.all();
    if (in.problem) return *in.problem;
    return hf::tokenizer(std::move(in.out));
  });
}

}  // namespace graft::io
#endif
