// SPDX-License-Identifier: Apache-2.0
// Metadata of a GGUF file as a model_config: sizes, RoPE settings and special tokens of llama (which is also how
// Mistral is stored), qwen2, qwen3, gemma and gpt2. The keys are those of gguf-py/gguf/constants.py and of llama.cpp's
// loader. A key of the architecture that is not listed here is refused by name, because it may change what the model
// computes.
#pragma once
#include <graft/io/gguf/reader.h>
#include <graft/model/model_config.h>

namespace graft::io {

GRAFT_LIBRARY result<model_config> config_of(const gguf& from);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/hf/config_families.h>

#include <algorithm>
#include <cmath>

namespace graft::io {

namespace detail {

inline constexpr model_family gguf_families[] = {model_family::llama, model_family::qwen2, model_family::qwen3,
                                                 model_family::gemma, model_family::gpt2};

struct gguf_metadata {
  const gguf& in;
  std::string family{};
  std::optional<error> problem{};

  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(in.file, parts...);
  }
  const gguf_value* find(const char* name) const { return in.find_value(family + "." + name); }
  template <class... Parts> void reject_key(const char* name, const Parts&... parts) {
    reject("the fact '", family.c_str(), ".", name, "' is ", parts...);
  }
  void integer(const char* name, int& to, bool needed = true) {
    const gguf_value* f = find(name);
    if (f == nullptr && !needed) return;
    if (f == nullptr || f->what != gguf_value::kind::whole || f->whole < 1 || f->whole > 1'000'000'000)
      return reject_key(name, f == nullptr ? "missing" : "no whole number above 0");
    to = static_cast<int>(f->whole);
  }
  void real(const char* name, double& to, bool needed = false) {
    const gguf_value* f = find(name);
    if (f == nullptr && !needed) return;
    if (f == nullptr || f->what != gguf_value::kind::real || !(f->real > 0) || f->real > 1e30)
      return reject_key(name, f == nullptr ? "missing" : "no number above 0");
    to = f->real;
  }
  // Refuses a number other than the one that is computed with.
  void must_be(const char* name, double wanted, const char* why) {
    const gguf_value* f = find(name);
    if (f == nullptr || (f->what == gguf_value::kind::real && f->real == wanted) ||
        (f->what != gguf_value::kind::real && f->what != gguf_value::kind::word && f->what != gguf_value::kind::list &&
         static_cast<double>(f->whole) == wanted))
      return;
    reject_key(name, "not ", static_cast<long long>(wanted), ": ", why);
  }
  // A token id; none where it is absent or -1.
  std::optional<int> token(const char* name) {
    const gguf_value* f = in.find_value(std::string("tokenizer.ggml.") + name);
    if (f == nullptr || (f->what == gguf_value::kind::whole && (f->whole == -1 || f->whole == 0xffffffffLL))) return {};
    if (f->what == gguf_value::kind::whole && f->whole >= 0 && f->whole <= 1'000'000'000)
      return static_cast<int>(f->whole);
    return reject("the fact 'tokenizer.ggml.", name, "' is no token"), std::nullopt;
  }
};

inline void refuse_unknown_gguf_keys(gguf_metadata& f) {
  constexpr std::string_view known[] = {
      "block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size", "attention.head_count",
      "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.scale",
      "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.sliding_window",
      "attention.causal", "rope.freq_base", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type",
      "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned",
      "rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
      "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier",
      // Not of what is computed here:
      "expert_count", "expert_used_count", "pooling_type", "tensor_data_layout"};
  const std::string prefix = f.family + ".";
  for (auto at = f.in.metadata.lower_bound(prefix); at != f.in.metadata.end() && at->first.starts_with(prefix); ++at)
    if (std::find(std::begin(known), std::end(known), std::string_view(at->first).substr(prefix.size())) ==
        std::end(known))
      f.reject("the fact ", in_quotes(at->first), " is not a setting that is supported");
}

// The divisors of RoPE's frequencies, by which converters store the scaling of Llama 3.
inline void read_rope_divisors(gguf_metadata& f, model_config& c) {
  const auto divisors = f.in.tensors.find("rope_freqs.weight");
  if (divisors == f.in.tensors.end()) return;
  const view& v = divisors->second;
  if (v.type != dtype::f32 || v.count() != c.head_dim / 2)
    return f.reject("tensor 'rope_freqs.weight' has ", v.count(), " numbers, expected ", c.head_dim / 2, " of F32");
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
inline void read_gguf_rope(gguf_metadata& f, model_config& c) {
  f.real("rope.freq_base", c.rope.theta);
  int turned = c.head_dim;
  f.integer("rope.dimension_count", turned, false);
  if (turned != c.head_dim) f.reject("only ", turned, " of a head's ", c.head_dim, " elements are rotated (RoPE)");
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
inline void read_gguf_tokens(gguf_metadata& f, special_tokens& t) {
  t = {f.token("bos_token_id"), f.token("padding_token_id"), {}};
  // llama.cpp ends generation at each of them: end of sequence, of turn and of message.
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"})
    if (const std::optional<int> end = f.token(name);
        end && std::find(t.eos_tokens.begin(), t.eos_tokens.end(), *end) == t.eos_tokens.end())
      t.eos_tokens.push_back(*end);
}
inline result<model_family> gguf_family_of(const gguf& from) {
  if (const gguf_value* type = from.find_value("general.type"); type != nullptr && type->word != "model")
    return fail_in(from.file, "'general.type' is ", in_quotes(type->word), ", expected a model");
  if (const gguf_value* parts = from.find_value("split.count"); parts != nullptr && parts->whole > 1)
    return fail_in(from.file, "this is one of ", number(static_cast<std::uint64_t>(parts->whole)),
                   " files of a model; join them with llama-gguf-split --merge");
  const gguf_value* said = from.find_value("general.architecture");
  text known;
  for (const model_family f : gguf_families) {
    if (said != nullptr && said->word == name_of(f)) return f;
    known << (known.empty() ? "" : f == std::end(gguf_families)[-1] ? " or " : ", ") << name_of(f);
  }
  return fail_in(from.file, "'general.architecture' is ", said == nullptr ? text("missing") : in_quotes(said->word),
                 ", expected ", known);
}

}  // namespace detail

GRAFT_LIBRARY result<model_config> config_of(const gguf& from) {
  const result<model_family> family = detail::gguf_family_of(from);
  if (!family) return family.failure();
  const bool gpt2 = *family == model_family::gpt2;
  const auto table = from.tensors.find("token_embd.weight");
  if (table == from.tensors.end() || table->second.rank != 2 || table->second.size[0] > 1'000'000'000)
    return fail_in(from.file, "there is no tensor 'token_embd.weight' with a row for every token");
  model_config c = hf::defaults_of(*family);
  detail::gguf_metadata f{from, name_of(*family)};
  detail::refuse_unknown_gguf_keys(f);
  c.vocabulary = static_cast<int>(table->second.size[0]);
  f.integer("block_count", c.layers), f.integer("embedding_length", c.hidden_size);
  f.integer("feed_forward_length", c.intermediate_size), f.integer("attention.head_count", c.heads);
  f.integer("context_length", c.positions, gpt2);  // the rows of GPT-2's table of positions
  if (!f.problem && c.layers > 10000) f.reject("the model has ", c.layers, " layers");
  f.must_be("expert_count", 0, "experts are not supported");
  f.real(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", c.norm_eps, true);
  if (!f.problem) detail::read_gguf_heads(f, c);
  if (!f.problem && !gpt2) detail::read_gguf_rope(f, c);
  detail::read_gguf_tokens(f, c.tokens);
  int window = 0;
  f.integer("attention.sliding_window", window, false);
  if (f.problem) return *f.problem;
  c.window.assign(static_cast<std::size_t>(c.layers), window);
  c.attention_bias = gpt2 || *family == model_family::qwen2 || from.tensors.contains("blk.0.attn_q.bias");
  c.output_bias = gpt2 || from.tensors.contains("blk.0.attn_output.bias");
  c.mlp_bias = gpt2 || from.tensors.contains("blk.0.ffn_up.bias");
  c.tied = !from.tensors.contains("output.weight");
  c.embedding_width = c.hidden_size;
  // Converters store GPT-2's projections [out, in], as they lie where they are quantized.
  if (gpt2) c.quantized = quantized_weights{dtype::ggml, {}, quantized_storage::gguf};
  return c;
}

}  // namespace graft::io
#endif
