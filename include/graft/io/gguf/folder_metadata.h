// SPDX-License-Identifier: Apache-2.0
// Metadata of a GGUF file for a model of a Hugging Face folder, under the keys that convert_hf_to_gguf.py and
// llama.cpp's loader use: sizes, RoPE, tokenizer, special tokens and chat template. What has no key there is refused by
// name.
#pragma once
#include <graft/core/library.h>
#include <graft/io/gguf/writer.h>
#include <graft/model/model_config.h>

#include <map>
#include <string>
#include <vector>

namespace graft::io {

// What divides the frequencies of RoPE, as the tensors that GGUF files have, by name.
using gguf_rope_tensors = std::map<std::string, std::vector<float>>;
// Puts everything but general.file_type.
GRAFT_LIBRARY status put_folder_metadata(gguf_writer& to, const std::string& folder, const model_config& c,
                                         gguf_rope_tensors& divisors);
// Fails where a file that was written means another model or other tokens than the folder.
GRAFT_LIBRARY status check_against_folder(const std::string& file, const std::string& folder, const model_config& c);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/chat_template/chat_template.h>
#include <graft/io/gguf/config.h>
#include <graft/io/gguf/tokenizer.h>
#include <graft/io/tokenizer/tokenizer_file.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

namespace graft::io {

namespace detail {

// The sliding window of the layers that have one; 0 where there is none, or it is as long as the longest sequence.
inline int widest_window(const model_config& c) {
  const int widest = c.window.empty() ? 0 : *std::max_element(c.window.begin(), c.window.end());
  return widest < c.positions ? widest : 0;
}
inline void put_gguf_rope(const gguf_keys_writer& keys, const model_config& c, gguf_rope_tensors& divisors) {
  const rope_settings& r = c.rope;
  const auto real = [&](const char* key, double v) { keys.real(key, v); };
  const auto word = [&](const char* key, const char* v) { keys.to.put(keys.prefix + key, v); };
  real("rope.freq_base", r.theta);
  keys.whole("rope.dimension_count", rotary_dim(c));
  switch (r.kind) {
    case rope_kind::plain: break;
    case rope_kind::linear: word("rope.scaling.type", "linear"), real("rope.scaling.factor", r.factor); break;
    case rope_kind::llama3: {
      rope_settings plain;
      plain.theta = r.theta;
      const std::vector<float> from = make_rope_frequencies(plain, rope_dim(c), c.positions).frequencies,
                               scaled = make_rope_frequencies(r, rope_dim(c), c.positions).frequencies;
      std::vector<float>& quotients = divisors["rope_freqs.weight"];
      for (std::size_t i = 0; i < from.size(); ++i) quotients.push_back(from[i] / scaled[i]);
      break;
    }
    case rope_kind::yarn: {
      word("rope.scaling.type", "yarn"), real("rope.scaling.factor", r.factor);
      keys.whole("rope.scaling.original_context_length", static_cast<int>(r.original_positions));
      real("rope.scaling.yarn_beta_fast", r.beta_fast), real("rope.scaling.yarn_beta_slow", r.beta_slow);
      rope_settings usual = r;  // llama.cpp multiplies with the factor of these
      usual.attention_factor.reset(), usual.mscale = usual.mscale_all = 0;
      if (const double factor = yarn_attention_factor(r) / yarn_attention_factor(usual); factor != 1)
        real("rope.scaling.attn_factor", factor);
      break;
    }
    case rope_kind::longrope:  // the family has the keys
      divisors["rope_factors_short.weight"] = r.divisors, divisors["rope_factors_long.weight"] = r.long_divisors;
      break;
  }
}
inline void put_gguf_windows(const gguf_keys_writer& to, const gguf_family& family, const model_config& c) {
  const int window = widest_window(c);
  if (window == 0) return;
  to.whole("attention.sliding_window", window);
  std::vector<bool> has_window;
  for (const int w : c.window) has_window.push_back(w != 0);
  if (family.window_period == 0 && std::find(has_window.begin(), has_window.end(), false) != has_window.end())
    to.to.put(to.prefix + "attention.sliding_window_pattern", has_window);
}
inline void put_gguf_sizes(gguf_writer& file, const gguf_family& family, const model_config& c,
                           gguf_rope_tensors& divisors) {
  const gguf_keys_writer to{file, std::string(family.name) + "."};
  const auto whole = [&](const char* key, int v) { to.whole(key, v); };
  whole("block_count", c.layers), whole("context_length", c.positions), whole("embedding_length", c.hidden_size);
  whole("feed_forward_length", c.intermediate_size), whole("vocab_size", c.vocabulary);
  whole("attention.head_count", c.heads), whole("attention.head_count_kv", c.kv_heads);
  whole("attention.key_length", c.head_dim), whole("attention.value_length", c.head_dim);
  to.real(family.has_layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", c.norm_eps);
  put_gguf_windows(to, family, c);
  if (family.write != nullptr) family.write(to, c);
  if (c.family->has_rope) put_gguf_rope(to, c, divisors);
}

// Writes tokenizer.json as tokenizer.ggml.*; the first thing that has no key there is kept.
struct gguf_tokenizer_writer {
  gguf_writer& to;
  const std::string& file;
  const json& top;
  const model_config& config;
  std::optional<error> problem{};
  std::vector<std::string> tokens{};
  // Ggml token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
  std::vector<std::int32_t> types{};
  std::map<std::string, std::uint32_t, std::less<>> ids{};

  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(file, parts..., "; convert the folder with llama.cpp's convert_hf_to_gguf.py");
  }
  static std::string key(const char* name) { return std::string("tokenizer.ggml.") + name; }
  // The steps of a component, which is one or a Sequence of them; none where it is absent.
  std::vector<const json*> steps(const char* component, const char* list) {
    std::vector<const json*> all;
    const json* const v = top.find(component);
    if (v == nullptr || v->is_null()) return all;
    const json *const type = v->find("type"), *const several = v->find(list);
    if (type == nullptr || !type->says("Sequence") || several == nullptr) return {v};
    for (const json& one : several->items) all.push_back(&one);
    return all;
  }
  static bool is(const json& step, const char* type) {
    const json* const v = step.find("type");
    return v != nullptr && v->says(type);
  }
  static bool flag(const json& step, const char* name, bool otherwise) {
    const json* const v = step.find(name);
    return v != nullptr && v->is_boolean() ? v->flag : otherwise;
  }
  static std::string type_of(const json& step) {
    const json* const v = step.find("type");
    return v != nullptr ? v->word : std::string();
  }
  static const json* inside(const json& step, const char* name, const char* kind) {
    const json* const v = step.find(name);
    return v != nullptr && v->is_object() ? v->find(kind) : nullptr;
  }

  void put_token(std::uint64_t id, const std::string& token, std::int32_t type) {
    if (id >= static_cast<std::uint64_t>(config.vocabulary))
      return reject("the token ", in_quotes(token), " has the number ", number(id), ", and the model has only ",
                    config.vocabulary, " rows");
    tokens[static_cast<std::size_t>(id)] = token, types[static_cast<std::size_t>(id)] = type;
    ids[token] = static_cast<std::uint32_t>(id);
  }
  void vocabulary(const json& model, bool sentencepiece) {
    const json* const all = model.find("vocab");
    if (all == nullptr || !all->is_object()) return reject("the model has no 'vocab' of tokens and numbers");
    const auto rows = static_cast<std::size_t>(config.vocabulary);
    tokens.resize(rows), types.assign(rows, 5);
    for (std::size_t i = 0; i < rows; ++i) tokens[i] = "[PAD" + std::to_string(i) + "]";
    const json* const unk = model.find("unk_token");
    for (std::size_t i = 0; i < all->keys.size() && !problem; ++i) {
      const std::string& t = all->keys[i];
      const bool byte = sentencepiece && t.size() == 6 && t.starts_with("<0x") && t.ends_with(">");
      put_token(all->items[i].whole, t, byte ? 6 : sentencepiece && unk != nullptr && unk->says(t) ? 2 : 1);
    }
    if (const json* const added = top.find("added_tokens"); added != nullptr)
      for (const json& one : added->items) {
        const json *const content = one.find("content"), *const id = one.find("id");
        if (content == nullptr || id == nullptr || !content->is_string() || !id->is_unsigned())
          return reject("'added_tokens' holds an entry without a number or a content");
        const bool is_unk = sentencepiece && unk != nullptr && unk->says(content->word);
        put_token(id->whole, content->word, is_unk ? 2 : flag(one, "special", false) ? 3 : 4);
      }
  }
  // Both tokens of each merge.
  std::vector<std::pair<std::string, std::string>> merges_of(const json& model) {
    std::vector<std::pair<std::string, std::string>> all;
    const json* const list = model.find("merges");
    if (list == nullptr || !list->is_list()) return reject("the model has no 'merges'"), all;
    for (const json& one : list->items) {
      const std::size_t space = one.word.find(' ', 1);
      if (one.is_list() && one.items.size() == 2)
        all.emplace_back(one.items[0].word, one.items[1].word);
      else if (one.is_string() && space != std::string::npos)
        all.emplace_back(one.word.substr(0, space), one.word.substr(space + 1));
      else
        return reject("'merges' holds an entry that is no pair of tokens"), all;
    }
    return all;
  }
  // The name of tokenizer.ggml.pre whose steps are these.
  void byte_level(const json& model) {
    std::vector<std::string> found;
    for (const json* step : steps("pre_tokenizer", "pretokenizers")) {
      const json* const regex = inside(*step, "pattern", "Regex");
      if (is(*step, "ByteLevel")) {
        if (flag(*step, "add_prefix_space", true)) return reject("its ByteLevel adds a space before a text");
        if (flag(*step, "use_regex", true)) found.emplace_back("$");
      } else if (is(*step, "Digits") && flag(*step, "individual_digits", false)) {
        found.emplace_back("#");
      } else if (is(*step, "Split") && regex != nullptr && step->find("behavior") != nullptr &&
                 step->find("behavior")->says("Isolated") && !flag(*step, "invert", false)) {
        found.push_back(regex->word);
      } else {
        return reject("its pre-tokenizer ", in_quotes(type_of(*step)), " is none that GGUF files name");
      }
    }
    for (const json* step : steps("normalizer", "normalizers"))
      if (!is(*step, "NFC")) return reject("its normalizer ", in_quotes(type_of(*step)), " has no key in GGUF files");
    const bool whole_words_first = flag(model, "ignore_merges", false);
    std::string pre;
    for (const gguf_split& s : gguf_splits) {
      std::vector<std::string> steps_of;
      for (const char* step : s.steps)
        if (step != nullptr) steps_of.emplace_back(step);
      if (pre.empty() && s.whole_words_first == whole_words_first && steps_of == found)
        pre = std::string_view(s.names).substr(0, std::string_view(s.names).find(' '));
    }
    if (pre.empty()) return reject("its pre-tokenizer is none that GGUF files name");
    to.put(key("model"), "gpt2"), to.put(key("pre"), pre);
    vocabulary(model, false);
    std::vector<std::string> merges;
    for (const auto& [left, right] : merges_of(model)) {
      merges.push_back(left);
      merges.back().append(1, ' ').append(right);
    }
    if (!problem) to.put(key("merges"), std::span<const std::string>(merges));
  }
  // SentencePiece merges the pair whose token has the highest score; so a token's score is less the later its merge is.
  void sentencepiece(const json& model) {
    const std::string space = "\xE2\x96\x81";
    bool prefix = false, replaces = false;
    for (const json* step : steps("normalizer", "normalizers")) {
      const json *const literal = inside(*step, "pattern", "String"), *const with = step->find("content"),
                        *const prepended = step->find("prepend");
      if (is(*step, "Prepend") && prepended != nullptr && prepended->says(space))
        prefix = true;
      else if (is(*step, "Replace") && literal != nullptr && literal->says(" ") && with != nullptr && with->says(space))
        replaces = true;
      else
        return reject("its normalizer ", in_quotes(type_of(*step)), " has no key in GGUF files");
    }
    for (const json* step : steps("pre_tokenizer", "pretokenizers")) {
      const json *const literal = inside(*step, "pattern", "String"), *const scheme = step->find("prepend_scheme");
      if (is(*step, "Metaspace") && !flag(*step, "split", true))
        prefix = scheme == nullptr || !scheme->says("never"), replaces = true;
      else if (!is(*step, "Split") || literal == nullptr || !literal->says(" ") || !replaces)
        return reject("its pre-tokenizer ", in_quotes(type_of(*step)), " has no key in GGUF files");
    }
    if (!replaces) return reject("it does not write spaces as SentencePiece does");
    to.put(key("model"), "llama"), to.put(key("pre"), "default"), to.put(key("add_space_prefix"), prefix);
    vocabulary(model, true);
    if (problem) return;
    std::vector<float> scores(tokens.size(), 0.0F);
    const auto merges = merges_of(model);
    for (std::size_t rank = merges.size(); rank-- > 0;) {
      const auto made = ids.find(merges[rank].first + merges[rank].second);
      if (made == ids.end()) return reject("a merge makes a token that does not exist");
      scores[made->second] = -static_cast<float>(rank + 1);
    }
    to.put(key("scores"), std::span<const float>(scores));
  }
  // Special tokens that the configuration of the tokenizer or of the model names, and whether texts get them.
  void special_tokens(const std::string& folder) {
    std::map<std::string, std::uint32_t> named;
    const std::string settings = folder + "/tokenizer_config.json";
    if (exists(settings)) {
      const result<json> said = read_json(settings);
      if (!said) return void(problem = said.failure());
      for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"})
        if (const json* const v = said->find(name); v != nullptr && !v->is_null())
          if (const json* const word = hf::token_text(*v); word != nullptr)
            if (const auto at = ids.find(word->word); at != ids.end()) named[name] = at->second;
    }
    const auto of_model = [&](const char* name, std::optional<int> id) {
      if (id && !named.contains(name)) named[name] = static_cast<std::uint32_t>(*id);
    };
    of_model("bos_token", config.tokens.bos_token), of_model("pad_token", config.tokens.pad_token);
    std::vector<std::uint32_t> ends(config.tokens.eos_tokens.begin(), config.tokens.eos_tokens.end());
    if (named.contains("eos_token")) {
      std::erase(ends, named["eos_token"]);
      ends.insert(ends.begin(), named["eos_token"]);
    }
    constexpr const char* end_keys[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    if (ends.size() > std::size(end_keys))
      return reject("the model has ", number(ends.size()), " tokens that end a text, and GGUF files have three");
    for (std::size_t k = 0; k < ends.size(); ++k) to.put(key(end_keys[k]), ends[k]);
    constexpr std::pair<const char*, const char*> keys[] = {
        {"bos_token", "bos_token_id"}, {"unk_token", "unknown_token_id"}, {"pad_token", "padding_token_id"}};
    for (const auto& [name, id] : keys)
      if (const auto at = named.find(name); at != named.end()) to.put(key(id), at->second);

    const result<hf::tokenizer> tokenizer = hf::read_tokenizer(folder);
    if (!tokenizer) return void(problem = tokenizer.failure());
    const auto plain = tokenizer->encode("a", false), whole = tokenizer->encode("a", true);
    if (!plain || !whole) return void(problem = plain ? whole.failure() : plain.failure());
    const auto at = std::search(whole->begin(), whole->end(), plain->begin(), plain->end());
    const auto before = std::vector<std::int64_t>(whole->begin(), at),
               after = at == whole->end()
                           ? std::vector<std::int64_t>()
                           : std::vector<std::int64_t>(at + static_cast<std::ptrdiff_t>(plain->size()), whole->end());
    const auto bos = named.find("bos_token");
    const bool adds_bos = before.size() == 1 && bos != named.end() && before[0] == bos->second,
               adds_eos = after.size() == 1 && !ends.empty() && after[0] == ends[0];
    const bool found = at != whole->end() || plain->empty();
    if (!found || (!before.empty() && !adds_bos) || (!after.empty() && !adds_eos))
      return reject("its post-processor adds other tokens than the first and the last one of a text");
    to.put(key("add_bos_token"), adds_bos), to.put(key("add_eos_token"), adds_eos);
  }
  void all(const std::string& folder) {
    const json* const model = top.find("model");
    const json* const type = model != nullptr ? model->find("type") : nullptr;
    if (model == nullptr || !model->is_object() || (type != nullptr && !type->says("BPE")))
      return reject("its model is ", type != nullptr ? in_quotes(type->word) : text("missing"), ", expected BPE");
    bool bytes = false;
    for (const json* step : steps("pre_tokenizer", "pretokenizers")) bytes = bytes || is(*step, "ByteLevel");
    if (!bytes && !flag(*model, "byte_fallback", false))
      return reject("it is neither byte-level BPE nor one with byte_fallback");
    if (bytes)
      byte_level(*model);
    else
      sentencepiece(*model);
    if (!problem) special_tokens(folder);
    if (problem) return;
    to.put(key("tokens"), std::span<const std::string>(tokens));
    to.put(key("token_type"), std::span<const std::int32_t>(types));
  }
};

inline status put_chat_templates(gguf_writer& to, const std::string& folder) {
  const std::string settings = folder + "/tokenizer_config.json";
  bool has_any = exists(folder + "/chat_template.jinja");
  if (!has_any && exists(settings)) {
    const result<json> said = read_json(settings);
    if (!said) return said.failure();
    const json* const v = said->find("chat_template");
    has_any = v != nullptr && !v->is_null();
  }
  if (!has_any) return ok;
  const result<hf::chat_template_source> all = hf::read_chat_templates(folder);
  if (!all) return all.failure();
  for (const auto& [name, source] : all->templates)
    to.put(name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + name, source);
  return ok;
}

// The first setting in which two models differ; null where they compute the same.
inline const char* first_difference(const model_config& a, const model_config& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-6 * std::abs(x); };
  const auto windows = [](const model_config& c) {
    std::vector<int> all = c.window;
    all.resize(static_cast<std::size_t>(c.layers), 0);
    if (widest_window(c) == 0) std::fill(all.begin(), all.end(), 0);
    return all;
  };
  const auto has_rope = [](const model_config& c) {
    std::vector<bool> all = c.no_rope;
    all.resize(static_cast<std::size_t>(c.layers), false);
    return all;
  };
  const auto rotates_alike = [&](const rope_settings& x, const rope_settings& y) {
    const rope_frequencies fx = make_rope_frequencies(x, rope_dim(a), a.positions),
                           fy = make_rope_frequencies(y, rope_dim(b), a.positions);
    bool same = near(static_cast<double>(fx.factor), static_cast<double>(fy.factor)) &&
                fx.frequencies.size() == fy.frequencies.size();
    for (std::size_t i = 0; same && i < fx.frequencies.size(); ++i)
      same = near(static_cast<double>(fx.frequencies[i]), static_cast<double>(fy.frequencies[i]));
    return same;
  };
  if (a.activation != b.activation) return "hidden_act";
  if (!near(a.norm_eps, b.norm_eps)) return "rms_norm_eps";
  if (!near(a.attention_scale, b.attention_scale)) return "the scale of attention";
  if (windows(a) != windows(b)) return "sliding_window";
  if (has_rope(a) != has_rope(b)) return "no_rope_layers";
  if (a.tied != b.tied) return "tie_word_embeddings";
  const auto has_experts_in_all = [](const model_config& c) {
    return c.sparse.empty() || std::find(c.sparse.begin(), c.sparse.end(), false) == c.sparse.end();
  };
  if (has_experts_in_all(a) != has_experts_in_all(b)) return "which layers have experts";
  if (a.experts > 0 && a.router_over_chosen != b.router_over_chosen) return "norm_topk_prob";
  if (a.swiglu_alpha != b.swiglu_alpha || a.swiglu_limit != b.swiglu_limit) return "the limits of SwiGLU";
  if (a.attention_scaled_by_layer != b.attention_scaled_by_layer) return "scale_attn_by_inverse_layer_idx";
  if (a.attention_bias != b.attention_bias || a.output_bias != b.output_bias || a.mlp_bias != b.mlp_bias)
    return "the biases";
  if (!near(a.attention_soft_cap, b.attention_soft_cap) || !near(a.logit_soft_cap, b.logit_soft_cap))
    return "the soft caps";
  if (!near(a.embedding_multiplier, b.embedding_multiplier) || !near(a.residual_multiplier, b.residual_multiplier) ||
      !near(a.logits_scaling, b.logits_scaling))
    return "the multipliers";
  if (!rotates_alike(a.rope, b.rope) || a.sliding_rope.has_value() != b.sliding_rope.has_value() ||
      (a.sliding_rope && !rotates_alike(*a.sliding_rope, *b.sliding_rope)))
    return "the rotary positions";
  return nullptr;
}

}  // namespace detail

GRAFT_LIBRARY status put_folder_metadata(gguf_writer& to, const std::string& folder, const model_config& c,
                                         gguf_rope_tensors& divisors) {
  const detail::gguf_family* const family = detail::gguf_family_of(*c.family);
  if (family == nullptr)
    return fail_in(folder, "a model of the type ", in_quotes(c.family->name),
                   " is not written as a GGUF file; convert the folder with llama.cpp's convert_hf_to_gguf.py");
  to.put("general.architecture", family->name), to.put("general.type", "model");
  std::error_code failed;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder, failed);
  to.put("general.name", failed ? std::string_view(folder) : std::string_view(whole.filename().string()));
  detail::put_gguf_sizes(to, *family, c, divisors);
  const std::string file = folder + "/tokenizer.json";
  const result<json> top = read_json(file);
  if (!top) return top.failure();
  detail::gguf_tokenizer_writer tokenizer{to, file, *top, c};
  tokenizer.all(folder);
  if (tokenizer.problem) return *tokenizer.problem;
  return detail::put_chat_templates(to, folder);
}

GRAFT_LIBRARY status check_against_folder(const std::string& file, const std::string& folder, const model_config& c) {
  const result<gguf> written = map_gguf(file);
  if (!written) return written.failure();
  const result<model_config> config = config_of(*written);
  if (!config) return config.failure();
  const auto refused = [&](const char* what) {
    return fail_in(folder, what, " of this model cannot be said in a GGUF file of the architecture ",
                   in_quotes(config->family->name), "; convert the folder with llama.cpp's convert_hf_to_gguf.py");
  };
  if (const char* other = detail::first_difference(c, *config); other != nullptr) return refused(other);
  const result<hf::tokenizer> ours = hf::read_tokenizer(folder), read = tokenizer_of(*written);
  if (!ours) return ours.failure();
  if (!read) return read.failure();
  for (const char* sample : {"", "Hello world", " two  spaces   and\ttabs\n\n lines\r\n",
                             "it's 12345 o'clock, isn't it? 3.14", "Gr\xC3\xBC\xC3\x9F Gott, \xC3\xA9t\xC3\xA9",
                             "\xE4\xBB\x8A\xE6\x97\xA5\xE3\x81\xAF 123 \xE6\xBC\xA2\xE5\xAD\x97",
                             "def f(x):\n    return x ** 2  # \xF0\x9F\x98\x80",
                             "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 http://a.b/c?d=e"})
    for (const bool special : {false, true}) {
      const auto a = ours->encode(sample, special), b = read->encode(sample, special);
      if (a && (!b || *a != *b)) return refused("the tokenizer");
    }
  return ok;
}

}  // namespace graft::io
#endif
