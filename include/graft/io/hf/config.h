// SPDX-License-Identifier: Apache-2.0
// Reads config.json of a causal language model. An absent field has the default of its family in transformers
// (models/*/configuration_*.py). Fields that change the computation are read, or refused by name if their value is not
// supported; dropouts are read, and cache settings and bookkeeping are ignored.
#pragma once
#include <graft/io/error_text.h>
#include <graft/io/hf/family_table.h>

#include <string>

namespace graft::io::hf {

GRAFT_LIBRARY result<model_config> parse_config(std::string_view content, std::string_view file,
                                                const family_table& families = built_in_families());
GRAFT_LIBRARY result<model_config> read_config(const std::string& folder,
                                               const family_table& families = built_in_families());

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
  if (c.family->has_rope && c.head_dim % 2 != 0)
    in.reject("'head_dim' ", c.head_dim, " is odd, and RoPE rotates pairs");
  else if (c.family->has_rope && rope_dim(c) < 1)
    in.reject("'partial_rotary_factor' leaves no element of heads of ", c.head_dim, " to rotate");
  for (const rope_settings* r : {&c.rope, c.sliding_rope ? &*c.sliding_rope : &c.rope})
    for (const auto& [key, numbers] : {std::pair{"short_factor", &r->divisors}, {"long_factor", &r->long_divisors}})
      if (r->kind == rope_kind::longrope && static_cast<int>(numbers->size()) != rotary_dim(c) / 2)
        in.reject("'", key, "' holds ", static_cast<int>(numbers->size()), " numbers, expected ", rotary_dim(c) / 2,
                  ", one for each pair of elements that RoPE rotates");
  if (c.embedding_width == 0) c.embedding_width = c.hidden_size;
  if (c.window.empty()) c.window.assign(static_cast<std::size_t>(c.layers), 0);
  if (c.attention_scale == 0) c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
}

// Returns the row of the family that the file names; null after an error.
inline const config_family* family_of(config_reader& in, const family_table& families) {
  const json* v = in.at("model_type");
  if (v == nullptr) return in.reject("the key 'model_type' is missing, expected one of ", families.names()), nullptr;
  const config_family* const row = v->is_string() ? families.find(v->word) : nullptr;
  if (row == nullptr) return in.expected("model_type", *v, "one of ", families.names()), nullptr;
  // A model_type also stands for classifiers and headless models; `architectures` tells them apart.
  if (const json* a = in.set("architectures"); a != nullptr)
    for (const json& e : a->is_list() ? a->items : std::vector<json>{*a})
      if (!e.is_string() || !(e.word.ends_with("ForCausalLM") || e.word.ends_with("LMHeadModel")))
        in.reject("'architectures' names ", found(e), ", expected a causal language model");
  return row;
}

GRAFT_LIBRARY result<model_config> parse_config(std::string_view content, std::string_view file,
                                                const family_table& families) {
  const result<json> parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return guarded(file, [&]() -> result<model_config> {
    config_reader in{*parsed, std::string(file)};
    const config_family* const row = family_of(in, families);
    if (in.problem) return *in.problem;
    model_config c;
    c.family = row->family;
    row->set_defaults(c);
    read_quantization(in, c);
    in.integer("vocab_size", c.vocabulary, 1);
    in.flag("tie_word_embeddings", c.tied);
    row->read(in, c);
    read_tokens(in, c.tokens);
    read_stored(in, c);
    check_sizes(in, c);
    if (in.problem) return *in.problem;
    return c;
  });
}

GRAFT_LIBRARY result<model_config> read_config(const std::string& folder, const family_table& families) {
  const std::string file = folder + "/config.json";
  const result<std::vector<std::byte>> bytes = read_file(file, std::uint64_t{16} << 20);
  if (!bytes) return bytes.failure();
  return parse_config(as_chars(*bytes), file, families);
}

}  // namespace graft::io::hf
#endif
