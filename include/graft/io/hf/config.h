// SPDX-License-Identifier: Apache-2.0
// Reads config.json of a causal language model. An absent field has the default of its family in transformers
// (models/*/configuration_*.py). Fields that change the computation are read, or refused by name if their value is not
// supported; dropouts are read, and cache settings and bookkeeping are ignored.
#pragma once
#include <graft/core/library.h>
#include <graft/io/error_text.h>
#include <graft/model/model_config.h>

#include <string>

namespace graft::io::hf {

GRAFT_LIBRARY result<model_config> parse_config(std::string_view content, std::string_view file);
GRAFT_LIBRARY result<model_config> read_config(const std::string& folder);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/config_families.h>
#include <graft/io/hf/quantization.h>

namespace graft::io::hf {

inline void check_sizes(config_reader& in, model_config& c) {
  if (in.problem) return;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0 && c.hidden_size % c.heads != 0)
    in.reject("the width ", c.hidden_size, " is not a multiple of the ", c.heads,
              " heads, and 'head_dim' is not given");
  if (c.head_dim == 0) c.head_dim = c.hidden_size / c.heads;
  if (c.heads % c.kv_heads != 0)
    in.reject("'num_attention_heads' ", c.heads, " is not a multiple of 'num_key_value_heads' ", c.kv_heads);
  if (has_rope(c.family) && c.head_dim % 2 != 0)
    in.reject("'head_dim' ", c.head_dim, " is odd, and RoPE rotates pairs");
  if (c.embedding_width == 0) c.embedding_width = c.hidden_size;
  if (c.window.empty()) c.window.assign(static_cast<std::size_t>(c.layers), 0);
  if (c.attention_scale == 0) c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
}

inline void read_family(config_reader& in, model_config& c) {
  const json* v = in.at("model_type");
  text known;
  for (const model_family f : model_families) known << (known.empty() ? "" : ", ") << name_of(f);
  if (v == nullptr) return in.reject("the key 'model_type' is missing, expected one of ", known);
  for (const model_family f : model_families)
    if (v->says(name_of(f))) {
      c = defaults_of(f);
      // A model_type also stands for classifiers and headless models; `architectures` tells them apart.
      if (const json* a = in.set("architectures"); a != nullptr)
        for (const json& e : a->is_list() ? a->items : std::vector<json>{*a})
          if (!e.is_string() || !(e.word.ends_with("ForCausalLM") || e.word.ends_with("LMHeadModel")))
            in.reject("'architectures' names ", found(e), ", expected a causal language model");
      return;
    }
  in.expected("model_type", *v, "one of ", known);
}

GRAFT_LIBRARY result<model_config> parse_config(std::string_view content, std::string_view file) {
  const result<json> parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return guarded(file, [&]() -> result<model_config> {
    config_reader in{*parsed, std::string(file)};
    model_config c;
    read_family(in, c);
    if (in.problem) return *in.problem;
    read_quantization(in, c);
    in.integer("vocab_size", c.vocabulary, 1);
    in.flag("tie_word_embeddings", c.tied);
    switch (c.family) {
      case model_family::opt: read_opt(in, c); break;
      case model_family::gpt2: read_gpt2(in, c); break;
      default: read_llama_like(in, c); break;
    }
    read_tokens(in, c.tokens);
    read_stored(in, c);
    check_sizes(in, c);
    if (in.problem) return *in.problem;
    return c;
  });
}

GRAFT_LIBRARY result<model_config> read_config(const std::string& folder) {
  const std::string file = folder + "/config.json";
  const result<std::vector<std::byte>> bytes = read_file(file, std::uint64_t{16} << 20);
  if (!bytes) return bytes.failure();
  result<model_config> c = parse_config(as_chars(*bytes), file);
  const std::string of_modelopt = folder + "/hf_quant_config.json";
  if (!c || c->quantized || !exists(of_modelopt)) return c;
  const result<std::vector<std::byte>> stated = read_file(of_modelopt, std::uint64_t{16} << 20);
  if (!stated) return stated.failure();
  result<quantized_weights> quantized = parse_quant_config(as_chars(*stated), of_modelopt);
  if (!quantized) return quantized.failure();
  c->quantized = std::move(*quantized);
  return c;
}

}  // namespace graft::io::hf
#endif
