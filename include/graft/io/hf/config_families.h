// SPDX-License-Identifier: Apache-2.0
// How config.json states each built-in family: the defaults of absent fields and the fields that are read, as in
// transformers (models/*/configuration_*.py). One row per family, at the end.
#pragma once
#include <graft/io/hf/config_family.h>
#include <graft/io/hf/config_fields.h>

namespace graft::io::hf {

inline void set_sizes(model_config& c, int vocabulary, int width, int inner, int layers, int heads, int kv_heads,
                      int positions) {
  c.vocabulary = vocabulary, c.hidden_size = width, c.intermediate_size = inner, c.layers = layers;
  c.heads = heads, c.kv_heads = kv_heads, c.positions = positions;
}

// Fields that most families share. Without 'head_dim' a head has hidden_size / num_attention_heads elements.
inline void read_decoder(config_reader& in, model_config& c, const char* activation = "hidden_act") {
  in.integer("hidden_size", c.hidden_size, 1);
  in.integer("intermediate_size", c.intermediate_size, 1);
  in.integer("num_hidden_layers", c.layers, 1, 10000);
  in.integer("num_attention_heads", c.heads, 1);
  if (const json* v = in.at("num_key_value_heads"); v != nullptr && v->is_null()) c.kv_heads = 0;
  if (in.set("num_key_value_heads") != nullptr) in.integer("num_key_value_heads", c.kv_heads, 1);
  if (in.set("head_dim") != nullptr) in.integer("head_dim", c.head_dim, 1);
  in.integer("max_position_embeddings", c.positions, 1);
  above_zero(in, "rms_norm_eps", c.norm_eps);
  read_activation(in, activation, c);
  if (in.set("attention_dropout") != nullptr) in.real("attention_dropout", c.attention_dropout, 1);
}
// A number that values are multiplied with or divided by.
inline void read_factor(config_reader& in, const char* key, double& to) {
  const json* v = in.set(key);
  if (v == nullptr) return;
  if (!v->is_number() || !(v->real >= 1e-6 && v->real <= 1e6)) return in.expected(key, *v, "a number from 1e-6 to 1e6");
  to = v->real;
}
// A soft cap: null is none.
inline void read_soft_cap(config_reader& in, const char* key, double& to) {
  if (const json* v = in.at(key); v != nullptr && v->is_null()) to = 0;
  read_factor(in, key, to);
}
inline void read_attention_bias(config_reader& in, model_config& c) {
  in.flag("attention_bias", c.attention_bias);
  c.output_bias = c.attention_bias;
}
inline void fix_attention_bias(config_reader& in, model_config& c, bool value) {
  must_be(in, "attention_bias", value, "this family fixes it");
  c.attention_bias = value;
}
inline void has_no_mlp_bias(config_reader& in) { must_be(in, "mlp_bias", false, "this family has no such biases"); }

namespace llama {
inline void set_defaults(model_config& c) {
  set_sizes(c, 32000, 4096, 11008, 32, 32, 0, 2048);
  c.tokens = {1, {}, {2}};
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  read_attention_bias(in, c);
  in.flag("mlp_bias", c.mlp_bias);
  read_no_windows(in, c);
}
}  // namespace llama

namespace mistral {
inline void set_defaults(model_config& c) {
  set_sizes(c, 32000, 4096, 14336, 32, 32, 8, 131072);
  c.tokens = {1, {}, {2}};
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  fix_attention_bias(in, c, false), has_no_mlp_bias(in);
  read_window_of_every_layer(in, c, 4096);
}
}  // namespace mistral

namespace qwen2 {
inline void set_defaults(model_config& c) { set_sizes(c, 151936, 4096, 22016, 32, 32, 32, 32768); }
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  fix_attention_bias(in, c, true), has_no_mlp_bias(in);
  read_windows_of_last_layers(in, c);
}
}  // namespace qwen2

namespace qwen3 {
inline void set_defaults(model_config& c) {
  set_sizes(c, 151936, 4096, 22016, 32, 32, 32, 32768);
  c.head_dim = 128;
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  read_attention_bias(in, c), has_no_mlp_bias(in);
  read_windows_of_last_layers(in, c);
}
}  // namespace qwen3

// Fields of mixtures of experts. `experts` are the keys that name their number; the first one that is set counts.
inline void read_experts(config_reader& in, model_config& c, std::initializer_list<const char*> experts) {
  for (const char* key : experts)
    if (in.set(key) != nullptr) {
      in.integer(key, c.experts, 1, 1 << 20);
      break;
    }
  in.integer("num_experts_per_tok", c.experts_per_token, 1);
  if (!in.problem && c.experts_per_token > c.experts)
    in.reject("'num_experts_per_tok' is ", c.experts_per_token, ", and there are ", c.experts, " experts");
  bool adds_loss = false;
  double factor = 0.001;
  in.flag("output_router_logits", adds_loss), in.real("router_aux_loss_coef", factor);
  c.router_loss = adds_loss ? factor : 0;
}
// Which layers have experts: every decoder_sparse_step-th, without those in mlp_only_layers.
inline void read_sparse_layers(config_reader& in, model_config& c) {
  int step = 1;
  in.integer("decoder_sparse_step", step, 1);
  in.integer("moe_intermediate_size", c.expert_intermediate_size, 1);
  in.flag("norm_topk_prob", c.router_over_chosen);
  if (in.problem) return;
  c.sparse.resize(static_cast<std::size_t>(c.layers));
  for (int l = 0; l < c.layers; ++l) c.sparse[static_cast<std::size_t>(l)] = (l + 1) % step == 0;
  const json* v = in.set("mlp_only_layers");
  if (v == nullptr) return;
  if (!v->is_list()) return in.expected("mlp_only_layers", *v, "a list of layer numbers");
  for (const json& e : v->items) {
    if (!e.is_unsigned() || !fits_int(e)) return in.expected("mlp_only_layers", e, "layer numbers");
    if (e.real < c.layers) c.sparse[static_cast<std::size_t>(e.real)] = false;
  }
}

namespace mixtral {
inline void set_defaults(model_config& c) {
  set_sizes(c, 32000, 4096, 14336, 32, 32, 8, 131072);
  c.norm_eps = 1e-5, c.tokens = {1, {}, {2}};
  c.experts = 8, c.experts_per_token = 2, c.rope.theta = 1e6;
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  fix_attention_bias(in, c, false), has_no_mlp_bias(in);
  read_window_of_every_layer(in, c, 0);
  read_experts(in, c, {"num_local_experts", "num_experts"});
  c.expert_intermediate_size = c.intermediate_size;
  if (const json* v = in.set("router_jitter_noise"); v != nullptr && !(v->is_number() && v->real == 0))
    in.expected("router_jitter_noise", *v, "0: the router sees no noise in training");
}
}  // namespace mixtral

namespace qwen2_moe {
inline void set_defaults(model_config& c) {
  set_sizes(c, 151936, 2048, 5632, 24, 16, 16, 32768);
  c.experts = 60, c.experts_per_token = 4, c.expert_intermediate_size = 1408, c.shared_expert_intermediate_size = 5632;
  c.router_over_chosen = false, c.attention_bias = true;
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  in.flag("qkv_bias", c.attention_bias), has_no_mlp_bias(in);
  bool slides = false;
  int window = 4096, end = 28;
  in.flag("use_sliding_window", slides), in.integer("max_window_layers", end, 0);
  if (slides && !read_window_length(in, window)) slides = false;
  read_windows(in, c, slides ? window : 0, true, [&](int l) { return l % 2 == 0 && l < end; });
  read_experts(in, c, {"num_experts", "num_local_experts"});
  read_sparse_layers(in, c);
  in.integer("shared_expert_intermediate_size", c.shared_expert_intermediate_size, 1);
}
}  // namespace qwen2_moe

namespace qwen3_moe {
inline void set_defaults(model_config& c) {
  set_sizes(c, 151936, 2048, 6144, 24, 32, 4, 32768);
  c.experts = 128, c.experts_per_token = 8, c.expert_intermediate_size = 768, c.router_over_chosen = false;
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  read_attention_bias(in, c), has_no_mlp_bias(in);
  bool slides = false;
  int window = 4096;
  in.flag("use_sliding_window", slides);
  if (slides && !read_window_length(in, window)) slides = false;
  read_windows(in, c, slides ? window : 0, false, [](int) { return true; });
  read_experts(in, c, {"num_experts", "num_local_experts"});
  read_sparse_layers(in, c);
}
}  // namespace qwen3_moe

namespace gpt_oss {
inline void set_defaults(model_config& c) {
  set_sizes(c, 201088, 2880, 2880, 36, 64, 8, 131072);
  c.head_dim = 64, c.norm_eps = 1e-5, c.attention_bias = c.output_bias = true;
  c.experts = 128, c.experts_per_token = 4, c.rope.theta = 150000;
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  if (in.set("rope_parameters") == nullptr && in.set("rope_scaling") == nullptr) {
    c.rope.kind = rope_kind::yarn, c.rope.factor = 32, c.rope.original_positions = 4096;
    c.rope.truncate = false;
  }
  read_attention_bias(in, c), has_no_mlp_bias(in);
  int window = 128;
  if (!read_window_length(in, window)) window = 0;
  read_windows(in, c, window, true, [](int l) { return l % 2 == 0; });
  read_experts(in, c, {"num_local_experts", "num_experts"});
  c.expert_intermediate_size = c.intermediate_size;
  in.real("swiglu_alpha", c.swiglu_alpha), above_zero(in, "swiglu_limit", c.swiglu_limit);
}
}  // namespace gpt_oss

namespace gemma {
inline void set_defaults(model_config& c) {
  set_sizes(c, 256000, 3072, 24576, 28, 16, 16, 8192);
  c.head_dim = 256, c.activation = activation_kind::gelu_tanh, c.tied = true;
  c.tokens = {2, 0, {1}};
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  // Gemma's files write "gelu" for gelu_tanh.
  if (c.activation == activation_kind::gelu) c.activation = activation_kind::gelu_tanh;
  model_config named = c;
  read_activation(in, "hidden_activation", named);
  if (named.activation != c.activation)
    in.reject("'hidden_activation' and 'hidden_act' are not the same; versions of transformers disagree which counts");
  must_be(in, "use_bidirectional_attention", false, "tokens see those before them only");
  read_attention_bias(in, c), has_no_mlp_bias(in);
  read_no_windows(in, c);
}
}  // namespace gemma

namespace opt {
inline void set_defaults(model_config& c) {
  set_sizes(c, 50272, 768, 3072, 12, 12, 0, 2048);
  c.activation = activation_kind::relu, c.tied = true, c.norm_eps = 1e-5;
  c.residual_dropout = 0.1;
  c.tokens = {2, 1, {2}};
}
inline void read(config_reader& in, model_config& c) {
  in.integer("hidden_size", c.hidden_size, 1);
  in.integer("ffn_dim", c.intermediate_size, 1);
  in.integer("num_hidden_layers", c.layers, 1, 10000);
  in.integer("num_attention_heads", c.heads, 1);
  in.integer("max_position_embeddings", c.positions, 1);
  if (in.set("word_embed_proj_dim") != nullptr) in.integer("word_embed_proj_dim", c.embedding_width, 1);
  in.flag("do_layer_norm_before", c.norm_before);
  bool removed = false;
  in.flag("_remove_final_layer_norm", removed);
  c.final_norm = c.norm_before && !removed;
  must_be(in, "layer_norm_elementwise_affine", true, "norms without weights are not supported");
  c.mlp_bias = true;
  in.flag("enable_bias", c.mlp_bias);
  c.attention_bias = c.output_bias = c.mlp_bias;
  read_activation(in, "activation_function", c);
  in.real("dropout", c.residual_dropout, 1);
  in.real("attention_dropout", c.attention_dropout, 1);
  if (const json* v = in.set("layerdrop"); v != nullptr && !(v->is_number() && v->real == 0))
    in.expected("layerdrop", *v, "0: layers are not left out while training");
}
}  // namespace opt

namespace gpt2 {
inline void set_defaults(model_config& c) {
  set_sizes(c, 50257, 768, 0, 12, 12, 0, 1024);
  c.activation = activation_kind::gelu_tanh, c.tied = true, c.norm_eps = 1e-5;
  c.residual_dropout = c.embedding_dropout = c.attention_dropout = 0.1;
  c.tokens = {50256, {}, {50256}};
}
inline void read(config_reader& in, model_config& c) {
  in.integer("n_embd", c.hidden_size, 1);
  c.intermediate_size = 0;
  if (in.set("n_inner") != nullptr) in.integer("n_inner", c.intermediate_size, 1);
  if (c.intermediate_size == 0 && c.hidden_size <= std::numeric_limits<int>::max() / 4)
    c.intermediate_size = 4 * c.hidden_size;
  in.integer("n_layer", c.layers, 1, 10000);
  in.integer("n_head", c.heads, 1);
  in.integer("n_positions", c.positions, 1);
  above_zero(in, "layer_norm_epsilon", c.norm_eps);
  read_activation(in, "activation_function", c);
  c.attention_bias = c.output_bias = c.mlp_bias = true;
  bool scaled = true;
  in.flag("scale_attn_weights", scaled);
  if (!scaled) c.attention_scale = 1;
  in.flag("scale_attn_by_inverse_layer_idx", c.attention_scaled_by_layer);
  must_be(in, "add_cross_attention", false, "there is no encoder");
  in.real("resid_pdrop", c.residual_dropout, 1);
  in.real("embd_pdrop", c.embedding_dropout, 1);
  in.real("attn_pdrop", c.attention_dropout, 1);
}
}  // namespace gpt2

namespace gemma2 {
inline void set_defaults(model_config& c) {
  set_sizes(c, 256000, 2304, 9216, 26, 8, 4, 8192);
  c.head_dim = 256, c.activation = activation_kind::gelu_tanh, c.tied = true;
  c.attention_soft_cap = 50, c.logit_soft_cap = 30;
  c.tokens = {2, 0, {1}};
}
inline void read_scale(config_reader& in, model_config& c) {
  double scaled_as = 256;
  read_factor(in, "query_pre_attn_scalar", scaled_as);
  c.attention_scale = 1 / std::sqrt(scaled_as);
}
// Every layer has a window except each one whose number, counted from 1, is a multiple of `pattern`.
inline void read_alternating_windows(config_reader& in, model_config& c, int pattern) {
  int window = 4096;
  if (!read_window_length(in, window)) window = 0;
  read_windows(in, c, window, true, [&](int l) { return (l + 1) % pattern != 0; });
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c, "hidden_activation"), read_rope(in, c);
  must_be(in, "use_bidirectional_attention", false, "tokens see those before them only");
  read_attention_bias(in, c), has_no_mlp_bias(in);
  read_scale(in, c);
  read_soft_cap(in, "attn_logit_softcapping", c.attention_soft_cap);
  read_soft_cap(in, "final_logit_softcapping", c.logit_soft_cap);
  read_alternating_windows(in, c, 2);
}
}  // namespace gemma2

namespace gemma3 {
inline void set_defaults(model_config& c) {
  gemma2::set_defaults(c);
  c.vocabulary = 262208, c.positions = 131072;
  c.attention_soft_cap = c.logit_soft_cap = 0;
  c.rope.theta = 1e6, c.sliding_rope.emplace();
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c, "hidden_activation"), read_rope_by_layer_type(in, c);
  must_be(in, "use_bidirectional_attention", false, "tokens see those before them only");
  read_attention_bias(in, c), has_no_mlp_bias(in);
  gemma2::read_scale(in, c);
  if (const json* v = in.set("attn_logit_softcapping"); v != nullptr)
    in.expected("attn_logit_softcapping", *v, "null: transformers reads it in no layer of this family");
  read_soft_cap(in, "final_logit_softcapping", c.logit_soft_cap);
  int pattern = 6;
  if (in.set("sliding_window_pattern") != nullptr) in.integer("sliding_window_pattern", pattern, 1);
  gemma2::read_alternating_windows(in, c, pattern);
}
}  // namespace gemma3

namespace granite {
inline void set_defaults(model_config& c) {
  set_sizes(c, 32000, 4096, 11008, 32, 32, 0, 2048);
  c.attention_scale = 1;
  c.tokens = {1, {}, {2}};
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  read_attention_bias(in, c);
  in.flag("mlp_bias", c.mlp_bias);
  read_factor(in, "attention_multiplier", c.attention_scale);
  read_factor(in, "embedding_multiplier", c.embedding_multiplier);
  read_factor(in, "residual_multiplier", c.residual_multiplier);
  read_factor(in, "logits_scaling", c.logits_scaling);
  read_no_windows(in, c);
}
}  // namespace granite

namespace olmo2 {
inline void set_defaults(model_config& c) {
  set_sizes(c, 50304, 4096, 11008, 32, 32, 0, 2048);
  c.norm_eps = 1e-5;
  c.tokens = {{}, 1, {50279}};
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  read_attention_bias(in, c), has_no_mlp_bias(in);
  read_no_windows(in, c);
}
}  // namespace olmo2

namespace phi3 {
inline void set_defaults(model_config& c) {
  set_sizes(c, 32064, 3072, 8192, 32, 32, 0, 4096);
  c.norm_eps = 1e-5, c.rope.original_positions = 4096;
  c.tokens = {1, 32000, {32000}};
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c, {.partial = true, .longrope_alone = true});
  fix_attention_bias(in, c, false), has_no_mlp_bias(in);
  in.real("resid_pdrop", c.residual_dropout, 1);  // transformers writes embd_pdrop too, and no layer reads it
  read_window_of_every_layer(in, c, 0);
}
}  // namespace phi3

namespace smollm3 {
inline void set_defaults(model_config& c) {
  set_sizes(c, 128256, 2048, 11008, 36, 16, 4, 32768);
  c.tied = true, c.rope.theta = 2e6;
  c.tokens = {128000, 128004, {128001}};
}
// no_rope_layers has 1 for layers with RoPE and 0 for those without; it may be longer than the model.
inline void read_no_rope(config_reader& in, model_config& c) {
  int interval = 4;
  in.integer("no_rope_layer_interval", interval, 1);
  c.no_rope.clear();
  for (int l = 0; l < c.layers; ++l) c.no_rope.push_back((l + 1) % interval == 0);
  const json* v = in.set("no_rope_layers");
  if (v == nullptr) return;
  if (!v->is_list() || v->items.size() < c.no_rope.size())
    return in.expected("no_rope_layers", *v, "a list with an entry for each of the ", c.layers, " layers");
  for (std::size_t l = 0; l < v->items.size(); ++l) {
    const json& e = v->items[l];
    if (!fits_int(e) || (e.real != 0 && e.real != 1))
      return in.reject("'no_rope_layers' holds ", found(e),
                       ", expected 1 for layers with RoPE and 0 for those without");
    if (l < c.no_rope.size()) c.no_rope[l] = e.real == 0;
  }
}
inline void read(config_reader& in, model_config& c) {
  read_decoder(in, c), read_rope(in, c);
  read_attention_bias(in, c);
  in.flag("mlp_bias", c.mlp_bias);
  read_no_rope(in, c);
  bool slides = false;
  int window = 0;
  in.flag("use_sliding_window", slides);
  if (!slides || !read_window_length(in, window)) window = 0;
  read_windows(in, c, window, true, [&](int l) { return c.no_rope[static_cast<std::size_t>(l)]; });
}
}  // namespace smollm3

// clang-format off
inline constexpr config_family built_in_config_families[] = {
    {&families::llama, llama::set_defaults, llama::read},
    {&families::mistral, mistral::set_defaults, mistral::read},
    {&families::qwen2, qwen2::set_defaults, qwen2::read},
    {&families::qwen3, qwen3::set_defaults, qwen3::read},
    {&families::mixtral, mixtral::set_defaults, mixtral::read},
    {&families::qwen2_moe, qwen2_moe::set_defaults, qwen2_moe::read},
    {&families::qwen3_moe, qwen3_moe::set_defaults, qwen3_moe::read},
    {&families::gpt_oss, gpt_oss::set_defaults, gpt_oss::read},
    {&families::gemma, gemma::set_defaults, gemma::read},
    {&families::gemma2, gemma2::set_defaults, gemma2::read},
    {&families::gemma3, gemma3::set_defaults, gemma3::read},
    {&families::granite, granite::set_defaults, granite::read},
    {&families::olmo2, olmo2::set_defaults, olmo2::read},
    {&families::phi3, phi3::set_defaults, phi3::read},
    {&families::smollm3, smollm3::set_defaults, smollm3::read},
    {&families::opt, opt::set_defaults, opt::read},
    {&families::gpt2, gpt2::set_defaults, gpt2::read},
};
// clang-format on

}  // namespace graft::io::hf
