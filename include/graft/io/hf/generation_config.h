// SPDX-License-Identifier: Apache-2.0
// Reads generation_config.json: the sampling settings and special tokens that a model's authors recommend. The file may
// be missing; special tokens that it does not set are those of config.json. Decoding strategies that are not supported
// would change the output, so they are refused by name.
#pragma once
#include <graft/core/library.h>
#include <graft/io/error_text.h>
#include <graft/model/generation_settings.h>
#include <graft/model/model_config.h>

#include <string>

namespace graft::io::hf {

// Reads only the tokens that end a sequence; `otherwise` if the folder names none. Loading a model uses nothing else,
// so that unsupported decoding strategies do not keep it from loading.
GRAFT_LIBRARY result<std::vector<int>> read_eos_tokens(const std::string& folder, const std::vector<int>& otherwise);

GRAFT_LIBRARY result<generation_settings> parse_generation_config(std::string_view content, std::string_view file,
                                                                  const special_tokens& otherwise);
GRAFT_LIBRARY result<generation_settings> read_generation_config(const std::string& folder,
                                                                 const special_tokens& otherwise);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/config_fields.h>

namespace graft::io::hf {

// Fields and the value with which they have no effect; null and absence have none either.
struct neutral_field {
  const char* key;
  double value;
};
inline constexpr neutral_field neutral_fields[] = {{"num_beams", 1},
                                                   {"num_beam_groups", 1},
                                                   {"min_length", 0},
                                                   {"min_new_tokens", 0},
                                                   {"typical_p", 1},
                                                   {"epsilon_cutoff", 0},
                                                   {"eta_cutoff", 0},
                                                   {"guidance_scale", 1},
                                                   {"penalty_alpha", 0},
                                                   {"no_repeat_ngram_size", 0},
                                                   {"num_return_sequences", 1},
                                                   {"encoder_repetition_penalty", 1},
                                                   {"encoder_no_repeat_ngram_size", 0},
                                                   {"diversity_penalty", 0}};
inline constexpr const char* refused_fields[] = {
    "top_h",         "bad_words_ids",       "forced_bos_token_id",   "forced_eos_token_id",
    "sequence_bias", "suppress_tokens",     "begin_suppress_tokens", "exponential_decay_length_penalty",
    "constraints",   "watermarking_config", "force_words_ids",       "stop_strings",
    "dola_layers",   "token_healing"};

inline void refuse_strategies(config_reader& in) {
  for (const neutral_field& f : neutral_fields)
    if (const json* v = in.set(f.key); v != nullptr && !(v->is_number() && v->real == f.value))
      in.expected(f.key, *v, static_cast<int>(f.value), ": this decoding strategy is not supported");
  for (const char* key : refused_fields) {
    const json* v = in.set(key);
    const bool empty = v != nullptr && ((v->is_boolean() && !v->flag) || (v->is_list() && v->items.empty()));
    if (v != nullptr && !empty) in.expected(key, *v, "null: this decoding strategy is not supported");
  }
}

// Returns the content of the file, or "{}" if it does not exist.
inline result<std::string> generation_config_text(const std::string& file) {
  if (!exists(file)) return std::string("{}");
  const result<std::vector<std::byte>> bytes = read_file(file, std::uint64_t{16} << 20);
  if (!bytes) return bytes.failure();
  return std::string(as_chars(*bytes));
}
inline result<json> generation_config_object(std::string_view content, std::string_view file) {
  result<json> parsed = parse_json(content, file);
  if (parsed && !parsed->is_object())
    return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return parsed;
}

GRAFT_LIBRARY result<std::vector<int>> read_eos_tokens(const std::string& folder, const std::vector<int>& otherwise) {
  const std::string file = folder + "/generation_config.json";
  const result<std::string> content = generation_config_text(file);
  if (!content) return content.failure();
  const result<json> parsed = generation_config_object(*content, file);
  if (!parsed) return parsed.failure();
  config_reader in{*parsed, file};
  special_tokens tokens{{}, {}, otherwise};
  read_tokens(in, tokens);
  if (in.problem) return *in.problem;
  return tokens.eos_tokens;
}

GRAFT_LIBRARY result<generation_settings> parse_generation_config(std::string_view content, std::string_view file,
                                                                  const special_tokens& otherwise) {
  const result<json> parsed = generation_config_object(content, file);
  if (!parsed) return parsed.failure();
  return guarded(file, [&]() -> result<generation_settings> {
    config_reader in{*parsed, std::string(file)};
    generation_settings g;
    special_tokens tokens = otherwise;
    read_tokens(in, tokens);
    refuse_strategies(in);
    if (in.set("do_sample") != nullptr) in.flag("do_sample", g.sampling.sample);
    if (in.set("temperature") != nullptr) in.real("temperature", g.sampling.temperature);
    above_zero(in, "repetition_penalty", g.sampling.repetition_penalty);
    if (in.set("top_k") != nullptr) in.integer("top_k", g.sampling.top_k, 0);
    if (in.set("top_p") != nullptr) in.real("top_p", g.sampling.top_p, 1);
    if (in.set("min_p") != nullptr) in.real("min_p", g.sampling.min_p, 1);
    if (in.set("max_new_tokens") != nullptr) in.integer("max_new_tokens", g.max_new_tokens.emplace(), 0);
    if (in.set("max_length") != nullptr) in.integer("max_length", g.max_length.emplace(), 0);
    if (in.set("prefill_chunk_size") != nullptr) in.integer("prefill_chunk_size", g.prefill_chunk_size.emplace(), 1);
    if (in.problem) return *in.problem;
    g.eos_tokens = tokens.eos_tokens, g.bos_token = tokens.bos_token, g.pad_token = tokens.pad_token;
    return g;
  });
}

GRAFT_LIBRARY result<generation_settings> read_generation_config(const std::string& folder,
                                                                 const special_tokens& otherwise) {
  const std::string file = folder + "/generation_config.json";
  const result<std::string> content = generation_config_text(file);
  if (!content) return content.failure();
  return parse_generation_config(*content, file, otherwise);
}

}  // namespace graft::io::hf
#endif
