// SPDX-License-Identifier: Apache-2.0
// A Llama or Qwen2 model from a GGUF file, without its tokenizer: facts as a configuration, tensors under the names of
// Hugging Face. The rows of Llama's Q and K are stored with the two halves of a head between each other (ggml turns pairs
// of neighbours where Hugging Face turns halves; permute() of convert_hf_to_gguf.py): they are copied back. Everything
// else is used where it lies.
#pragma once
#include <graft/io/gguf.h>
#include <graft/io/hf/load_model.h>

namespace graft::io {

GRAFT_LIBRARY result<model_config> config_of(const gguf& from);
GRAFT_LIBRARY result<model_weights> weights_of(gguf from, const model_config& c);
GRAFT_LIBRARY result<hf::model_folder> open_gguf_model(const std::string& file);

template <class Engine>
result<causal_lm<Engine>> load_gguf(const std::string& file, const model_options& options = {}) {
  result<hf::model_folder> opened = open_gguf_model(file);
  if (!opened) return opened.failure();
  return guarded(file, [&]() -> result<causal_lm<Engine>> {
    result<causal_lm<Engine>> made = causal_lm<Engine>::make(opened->config, std::move(opened->weights), options);
    if (!made) return fail_in(file, made.message());
    return made;
  });
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/hf/config_families.h>
#include <graft/io/hf/tensor_names.h>

namespace graft::io {

namespace detail {
struct gguf_facts {
  const gguf& in;
  std::string family;
  std::optional<error> problem{};

  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(in.file, parts...);
  }
  const gguf_fact* find(const char* name) const { return in.fact(family + "." + name); }
  void integer(const char* name, int& to, bool needed = true) {
    const gguf_fact* f = find(name);
    if (f == nullptr && !needed) return;
    if (f == nullptr || f->what != gguf_fact::kind::whole || f->whole < 1 || f->whole > 1'000'000'000)
      return reject("the fact '", family.c_str(), ".", name, "' is ",
                    f == nullptr ? "missing" : "no whole number above 0");
    to = static_cast<int>(f->whole);
  }
  void real(const char* name, double& to) {
    const gguf_fact* f = find(name);
    if (f == nullptr) return;
    if (f->what != gguf_fact::kind::real || !(f->real > 0) || f->real > 1e30)
      return reject("the fact '", family.c_str(), ".", name, "' is no number above 0");
    to = f->real;
  }
  std::optional<int> token(const char* name) const {
    const gguf_fact* f = in.fact(std::string("tokenizer.ggml.") + name);
    if (f == nullptr || f->what != gguf_fact::kind::whole || f->whole < 0 || f->whole > 1'000'000'000) return {};
    return static_cast<int>(f->whole);
  }
};
inline void read_gguf_rope(gguf_facts& f, model_config& c) {
  f.real("rope.freq_base", c.rope.theta);
  int turned = c.head_size;
  f.integer("rope.dimension_count", turned, false);
  if (turned != c.head_size)
    f.reject("only ", turned, " of a head's ", c.head_size, " elements are turned by position");
  const gguf_fact* kind = f.find("rope.scaling.type");
  if (kind != nullptr && kind->word != "none") {
    if (kind->word != "linear")
      return f.reject("positions are scaled by ", in_quotes(kind->word),
                      ", expected none or linear; load the model "
                      "from its Hugging Face folder");
    c.rope.kind = rope_kind::linear;
    f.real("rope.scaling.factor", c.rope.factor);
  }
  const auto divisors = f.in.tensors.find("rope_freqs.weight");
  if (divisors == f.in.tensors.end()) return;
  const view& v = divisors->second;
  if (v.type != dtype::f32 || v.count() != c.head_size / 2)
    return f.reject("tensor 'rope_freqs.weight' has ", v.count(), " numbers, expected ", c.head_size / 2, " of F32");
  c.rope.divisors.resize(static_cast<std::size_t>(v.count()));
  std::memcpy(c.rope.divisors.data(), v.data, c.rope.divisors.size() * sizeof(float));
  for (const float d : c.rope.divisors)
    if (!(d >= 1e-6F && d <= 1e6F))
      return f.reject("tensor 'rope_freqs.weight' has a number that divides no frequency");
}
// The name of a tensor in a Hugging Face folder; empty: there is none.
inline std::string name_in_folder(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> ends[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"}};
  static constexpr std::pair<std::string_view, std::string_view> modules[] = {
      {"attn_norm", "input_layernorm"}, {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},           {"ffn_down", "mlp.down_proj"}};
  for (const auto& [from, to] : ends)
    if (name == from) return std::string(to);
  const std::size_t layer = name.find('.'), module = layer == name.npos ? layer : name.find('.', layer + 1),
                    kind = name.rfind('.');
  if (module == name.npos || kind <= module || name.substr(0, layer) != "blk") return {};
  for (const auto& [from, to] : modules)
    if (name.substr(module + 1, kind - module - 1) == from)
      return "model.layers." + std::string(name.substr(layer + 1, module - layer - 1)) + "." + std::string(to) +
             std::string(name.substr(kind));
  return {};
}
// Row 2 j + half of a head goes to row half * size / 2 + j.
inline held_bytes halves_apart(const view& v, int heads) {
  const long long rows = v.size[0], size = rows / heads;
  const auto row_bytes = static_cast<std::size_t>(v.beside != nullptr ? bytes_of_codes(v.beside->how, 1, v.size[1])
                                                                      : v.count() / rows * bits_of(v.type) / 8);
  std::vector<std::byte> to(static_cast<std::size_t>(rows) * row_bytes);
  const auto* const from = static_cast<const std::byte*>(v.data);
  for (long long r = 0; r < rows; ++r) {
    const long long in_head = r % size, target = r - in_head + in_head % 2 * (size / 2) + in_head / 2;
    std::copy_n(from + static_cast<std::size_t>(r) * row_bytes, row_bytes,
                to.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(target) * row_bytes));
  }
  return hold(std::move(to));
}
}  // namespace detail

GRAFT_LIBRARY result<model_config> config_of(const gguf& from) {
  const gguf_fact* family = from.fact("general.architecture");
  const bool llama = family != nullptr && family->word == "llama", qwen2 = family != nullptr && family->word == "qwen2";
  if (!llama && !qwen2)
    return fail_in(from.file, "'general.architecture' is ", family == nullptr ? text() : in_quotes(family->word),
                   ", expected llama or qwen2");
  const auto table = from.tensors.find("token_embd.weight");
  if (table == from.tensors.end() || table->second.rank != 2 || table->second.size[0] > 1'000'000'000)
    return fail_in(from.file, "there is no tensor 'token_embd.weight' with a row for every token");
  model_config c = hf::defaults_of(llama ? model_family::llama : model_family::qwen2);
  detail::gguf_facts f{from, std::string(family->word)};
  c.vocabulary = static_cast<int>(table->second.size[0]);
  f.integer("block_count", c.layers), f.integer("embedding_length", c.width);
  f.integer("feed_forward_length", c.inner), f.integer("attention.head_count", c.heads);
  c.key_heads = c.heads;
  f.integer("attention.head_count_kv", c.key_heads, false);
  f.integer("context_length", c.positions, false);
  if (!f.problem && c.layers > 10000) f.reject("the model has ", c.layers, " layers");
  c.head_size = c.heads > 0 ? c.width / c.heads : 0;
  f.integer("attention.key_length", c.head_size, false);
  if (!f.problem && (c.heads % c.key_heads != 0 || c.head_size < 2 || c.head_size % 2 != 0))
    f.reject(c.heads, " heads of ", c.head_size, " elements with ", c.key_heads, " heads of keys do not fit together");
  if (f.find("expert_count") != nullptr) f.reject("the model has experts, which are not supported");
  f.real("attention.layer_norm_rms_epsilon", c.norm_eps);
  detail::read_gguf_rope(f, c);
  if (f.problem) return *f.problem;
  c.attention_bias = qwen2 || from.tensors.contains("blk.0.attn_q.bias");
  c.output_bias = from.tensors.contains("blk.0.attn_output.bias");
  c.mlp_bias = from.tensors.contains("blk.0.ffn_up.bias");
  c.tied = !from.tensors.contains("output.weight");
  c.embedding_width = c.width;
  c.window.assign(static_cast<std::size_t>(c.layers), 0);
  c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  c.tokens = {f.token("bos_token_id"), f.token("padding_token_id"), {}};
  if (const std::optional<int> end = f.token("eos_token_id")) c.tokens.end = {*end};
  return c;
}
GRAFT_LIBRARY result<model_weights> weights_of(gguf from, const model_config& c) {
  struct files {
    gguf tensors;
    std::vector<held_bytes> copies;
  };
  auto kept = std::make_shared<files>(files{std::move(from), {}});
  const gguf& in = kept->tensors;
  model_weights out;
  for (const auto& [name, stored] : in.tensors) {
    if (name == "rope_freqs.weight") continue;  // part of the configuration
    const std::string to = detail::name_in_folder(name);
    if (to.empty())
      return fail_in(in.file, "tensor ", in_quotes(name), " is not part of a ", name_of(c.family), " model");
    view v = stored;
    const bool query = to.find("self_attn.q_proj.") != to.npos, key = to.find("self_attn.k_proj.") != to.npos;
    if (c.family == model_family::llama && (query || key)) {
      const int heads = query ? c.heads : c.key_heads;
      if (v.size[0] != static_cast<long long>(heads) * c.head_size)
        return fail_in(in.file, "tensor ", in_quotes(name), " has ", v.size[0], " rows, expected ", heads, " heads of ",
                       c.head_size);
      kept->copies.push_back(detail::halves_apart(v, heads));
      v.data = kept->copies.back().all.data();
    }
    out.tensors[to] = v;
  }
  out.owner = std::move(kept);
  return out;
}

GRAFT_LIBRARY result<hf::model_folder> open_gguf_model(const std::string& file) {
  return guarded(file, [&]() -> result<hf::model_folder> {
    result<gguf> in = map_gguf(file);
    if (!in) return in.failure();
    result<model_config> config = config_of(*in);
    if (!config) return config.failure();
    result<model_weights> weights = weights_of(std::move(*in), *config);
    if (!weights) return weights.failure();
    if (status s = hf::check_names(*config, *weights, file); !s) return s.failure();
    return hf::model_folder{*config, std::move(*weights)};
  });
}

}  // namespace graft::io
#endif
