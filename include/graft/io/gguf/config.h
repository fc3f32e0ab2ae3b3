// SPDX-License-Identifier: Apache-2.0
// Metadata of a GGUF file as a model_config: sizes, RoPE settings and special tokens of the families in families.h. The
// keys are those of gguf-py/gguf/constants.py and of llama.cpp's loader. A key of the architecture that is not listed
// is refused by name, because it may change what the model computes.
#pragma once
#include <graft/io/gguf/reader.h>
#include <graft/model/model_config.h>

namespace graft::io {

GRAFT_LIBRARY result<model_config> config_of(const gguf& from);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/gguf/families.h>
#include <graft/io/hf/family_table.h>

#include <algorithm>
#include <cmath>

namespace graft::io {

namespace detail {

inline void refuse_unknown_gguf_keys(gguf_metadata& f, std::span<const std::string_view> of_family) {
  constexpr std::string_view known[] = {
      "block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size", "attention.head_count",
      "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.scale",
      "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.sliding_window",
      "attention.sliding_window_pattern", "attention.causal", "rope.freq_base", "rope.dimension_count",
      "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
      "rope.scaling.finetuned", "rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor",
      "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
      "rope.scaling.yarn_log_multiplier",
      // Keys that are ignored: they do not change the result, or the readers of expert families take them.
      "expert_count", "expert_used_count", "pooling_type", "tensor_data_layout"};
  const std::string prefix = f.family + ".";
  const auto lists = [](const auto& keys, std::string_view key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  for (auto at = f.in.metadata.lower_bound(prefix); at != f.in.metadata.end() && at->first.starts_with(prefix); ++at)
    if (const std::string_view key = std::string_view(at->first).substr(prefix.size());
        !lists(known, key) && !lists(of_family, key))
      f.reject("the fact ", in_quotes(at->first), " is not a setting that is supported");
}

// The divisors of RoPE's frequencies, by which converters store the scaling of Llama 3.
inline void read_rope_divisors(gguf_metadata& f, model_config& c) {
  const auto divisors = f.in.tensors.find("rope_freqs.weight");
  if (divisors == f.in.tensors.end()) return;
  const view& v = divisors->second;
  if (v.type != dtype::f32 || v.count() != rotary_dim(c) / 2)
    return f.reject("tensor 'rope_freqs.weight' has ", v.count(), " numbers, expected ", rotary_dim(c) / 2, " of F32");
  c.rope.divisors.resize(static_cast<std::size_t>(v.count()));
  std::memcpy(c.rope.divisors.data(), v.data, c.rope.divisors.size() * sizeof(float));
  for (const float d : c.rope.divisors)
    if (!(d >= 1e-6F && d <= 1e6F))
      return f.reject("tensor 'rope_freqs.weight' has a number that divides no frequency");
}
inline void read_gguf_yarn(gguf_metadata& f, model_config& c) {
  rope_settings& r = c.rope;
  r.kind = rope_kind::yarn;
  f.real("rope.scaling.factor", r.factor, true);
  if (!f.problem && r.factor < 1) f.reject_key("rope.scaling.factor", "below 1, and yarn stretches positions");
  int positions = c.positions;
  f.integer("rope.scaling.original_context_length", positions, false);
  r.original_positions = positions;
  f.real("rope.scaling.yarn_beta_fast", r.beta_fast), f.real("rope.scaling.yarn_beta_slow", r.beta_slow);
  f.must_be("rope.scaling.yarn_ext_factor", 1, "only whole extrapolation is supported");
  f.must_be("rope.scaling.yarn_log_multiplier", 0, "DeepSeek's scaling of attention is not supported");
  // llama.cpp multiplies this factor with yarn's own.
  double factor = 1;
  for (const char* key : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"})
    if (f.find(key) != nullptr) f.real(key, factor);
  if (factor != 1) r.attention_factor = factor * yarn_attention_factor(r);
}
inline void read_gguf_rope(gguf_metadata& f, model_config& c, bool may_rotate_partly) {
  f.real("rope.freq_base", c.rope.theta);
  int rotated = c.head_dim;
  f.integer("rope.dimension_count", rotated, false);
  if (rotated != c.head_dim && (!may_rotate_partly || rotated > c.head_dim || rotated % 2 != 0))
    f.reject("only ", rotated, " of a head's ", c.head_dim, " elements are rotated (RoPE)");
  if (rotated < c.head_dim) c.rope.partial = (rotated + 0.5) / c.head_dim;  // rope_dim() rounds down
  const gguf_value* kind = f.find("rope.scaling.type");
  const bool old = f.find("rope.scale_linear") != nullptr;  // in files from before rope.scaling.type
  const char* const factor = old ? "rope.scale_linear" : "rope.scaling.factor";
  const std::string_view word = kind != nullptr ? kind->word : f.find(factor) != nullptr ? "linear" : "none";
  if (word == "linear") {
    c.rope.kind = rope_kind::linear;
    f.real(factor, c.rope.factor, true);
  } else if (word == "yarn") {
    read_gguf_yarn(f, c);
  } else if (word != "none") {
    return f.reject("positions are scaled by ", in_quotes(word),
                    ", expected none, linear or yarn; load the model from its Hugging Face folder");
  }
  read_rope_divisors(f, c);
}
inline void read_gguf_heads(gguf_metadata& f, model_config& c) {
  c.kv_heads = c.heads;
  f.integer("attention.head_count_kv", c.kv_heads, false);
  const bool given = f.find("attention.key_length") != nullptr;
  if (!f.problem && !given && c.hidden_size % c.heads != 0)
    f.reject("the width ", c.hidden_size, " is no multiple of the ", c.heads, " heads, and '", f.family.c_str(),
             ".attention.key_length' is missing");
  c.head_dim = c.heads > 0 ? c.hidden_size / c.heads : 0;
  f.integer("attention.key_length", c.head_dim, false);
  int values = c.head_dim;
  f.integer("attention.value_length", values, false);
  if (!f.problem && values != c.head_dim)
    f.reject("keys of ", c.head_dim, " and values of ", values, " elements are not supported");
  if (!f.problem && (c.heads % c.kv_heads != 0 || c.head_dim < 2 || c.head_dim % 2 != 0))
    f.reject(c.heads, " heads of ", c.head_dim, " elements with ", c.kv_heads, " key/value heads do not match");
  c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  f.real("attention.scale", c.attention_scale);
  f.must_be("attention.causal", 1, "tokens attend to those before them only");
}
// The pattern is the period of layers without a window, or a list that says of each layer whether it has one.
inline void read_gguf_windows(gguf_metadata& f, model_config& c, const gguf_family& family) {
  int window = family.usual_window, period = family.window_period;
  f.integer("attention.sliding_window", window, false, 0);
  if (f.problem) return;
  const auto layers = static_cast<std::size_t>(c.layers);
  c.window.assign(layers, window);
  const gguf_value* const pattern = f.find("attention.sliding_window_pattern");
  if (pattern != nullptr && pattern->what == gguf_value::kind::list) {
    if (pattern->element != 7 || pattern->whole != c.layers)
      return f.reject_key("attention.sliding_window_pattern", "no list of ", c.layers, " flags, one for each layer");
    for (std::size_t l = 0; l < layers; ++l)
      if (pattern->word[l] == 0) c.window[l] = 0;
    return;
  }
  f.integer("attention.sliding_window_pattern", period, false);
  if (f.problem || period == 0) return;
  for (int l = period - 1; l < c.layers; l += period) c.window[static_cast<std::size_t>(l)] = 0;
}
inline void read_gguf_tokens(gguf_metadata& f, special_tokens& t) {
  t = {f.token("bos_token_id"), f.token("padding_token_id"), {}};
  // llama.cpp ends generation at each of them: end of sequence, of turn and of message.
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"})
    if (const std::optional<int> end = f.token(name);
        end && std::find(t.eos_tokens.begin(), t.eos_tokens.end(), *end) == t.eos_tokens.end())
      t.eos_tokens.push_back(*end);
}
inline result<const gguf_family*> gguf_family_of(const gguf& from) {
  if (const gguf_value* type = from.find_value("general.type"); type != nullptr && type->word != "model")
    return fail_in(from.file, "'general.type' is ", in_quotes(type->word), ", expected a model");
  if (const gguf_value* parts = from.find_value("split.count"); parts != nullptr && parts->whole > 1)
    return fail_in(from.file, "this is one of ", number(static_cast<std::uint64_t>(parts->whole)),
                   " files of a model; join them with llama-gguf-split --merge");
  const gguf_value* architecture = from.find_value("general.architecture");
  text known;
  const auto has_experts = [&](const char* name) {
    const gguf_value* const count = from.find_value(std::string(name) + ".expert_count");
    return count != nullptr && count->whole > 0;
  };
  for (const gguf_family& f : gguf_families) {
    const bool needs_experts = f.has_experts && !f.shares_name;
    if (architecture != nullptr && architecture->word == f.name &&
        (needs_experts || f.has_experts == has_experts(f.name)))
      return &f;
    if (f.shares_name) continue;
    known << (known.empty() ? "" : &f == &std::end(gguf_families)[-1] ? " or " : ", ") << f.name;
  }
  if (architecture != nullptr && has_experts(std::string(architecture->word).c_str()))
    return fail_in(from.file, "'general.architecture' is ", in_quotes(architecture->word),
                   " with experts; of models with experts llama (Mixtral), qwen2moe, qwen3moe and gpt-oss are read");
  return fail_in(from.file, "'general.architecture' is ",
                 architecture == nullptr ? text("missing") : in_quotes(architecture->word), ", expected ", known);
}

}  // namespace detail

GRAFT_LIBRARY result<model_config> config_of(const gguf& from) {
  const result<const detail::gguf_family*> found = detail::gguf_family_of(from);
  if (!found) return found.failure();
  const detail::gguf_family& family = **found;
  const auto table = from.tensors.find("token_embd.weight");
  if (table == from.tensors.end() || table->second.rank != 2 || table->second.size[0] > 1'000'000'000)
    return fail_in(from.file, "there is no tensor 'token_embd.weight' with a row for every token");
  model_config c;
  c.family = family.family;
  hf::built_in_families().find(family.family->name)->set_defaults(c);
  detail::gguf_metadata f{from, family.name};
  detail::refuse_unknown_gguf_keys(f, family.keys);
  c.vocabulary = static_cast<int>(table->second.size[0]);
  f.integer("block_count", c.layers), f.integer("embedding_length", c.hidden_size);
  f.integer("feed_forward_length", c.intermediate_size), f.integer("attention.head_count", c.heads);
  f.integer("context_length", c.positions, !c.family->has_rope);  // then the rows of the table of positions
  if (!f.problem && c.layers > 10000) f.reject("the model has ", c.layers, " layers");
  f.real(family.has_layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", c.norm_eps,
         true);
  if (!f.problem) detail::read_gguf_heads(f, c);
  if (!f.problem && c.family->has_rope) detail::read_gguf_rope(f, c, family.may_rotate_partly);
  detail::read_gguf_tokens(f, c.tokens);
  if (!f.problem) detail::read_gguf_windows(f, c, family);
  if (f.problem) return *f.problem;
  if (family.read != nullptr) family.read(f, c);
  if (f.problem) return *f.problem;
  c.attention_bias = family.has_qkv_bias || from.tensors.contains("blk.0.attn_q.bias");
  c.output_bias = family.has_layer_norms || from.tensors.contains("blk.0.attn_output.bias");
  c.mlp_bias = family.has_layer_norms || from.tensors.contains("blk.0.ffn_up.bias");
  c.tied = !from.tensors.contains("output.weight");
  c.embedding_width = c.hidden_size;
  // Converters transpose projections to [out, in]; marking the model quantized makes its formulas read that layout.
  if (c.family->stores_in_out || c.family->experts_in_out)
    c.quantized = quantized_weights{dtype::ggml, {}, quantized_storage::gguf};
  return c;
}

}  // namespace graft::io
#endif
