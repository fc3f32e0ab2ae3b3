// SPDX-License-Identifier: Apache-2.0
// Fields of config.json that several families share: activation, special tokens, dtype, sliding windows.
#pragma once
#include <graft/io/hf/rope.h>

namespace graft::io::hf {

inline void read_activation(config_reader& in, const char* key, model_config& c) {
  constexpr std::pair<const char*, activation_kind> known[] = {{"silu", activation_kind::silu},
                                                               {"swish", activation_kind::silu},
                                                               {"gelu", activation_kind::gelu},
                                                               {"gelu_new", activation_kind::gelu_tanh},
                                                               {"gelu_pytorch_tanh", activation_kind::gelu_tanh},
                                                               {"relu", activation_kind::relu}};
  const json* v = in.set(key);
  if (v == nullptr) return;
  for (const auto& [name, kind] : known)
    if (v->says(name)) return void(c.activation = kind);
  in.expected(key, *v, "\"silu\", \"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\" or \"relu\"");
}

inline void read_token(config_reader& in, const char* key, std::optional<int>& out) {
  const json* v = in.at(key);
  if (v == nullptr) return;
  out.reset();
  if (v->is_null() || (fits_int(*v) && v->real == -1)) return;  // old files write -1 for none
  in.integer(key, out.emplace(), 0);
}
inline void read_tokens(config_reader& in, special_tokens& t) {
  read_token(in, "bos_token_id", t.bos_token);
  read_token(in, "pad_token_id", t.pad_token);
  const json* v = in.at("eos_token_id");
  if (v == nullptr) return;
  t.eos_tokens.clear();
  const std::vector<json> one{*v};
  for (const json& e : v->is_list() ? v->items : one) {
    if (e.is_null() && !v->is_list()) continue;
    if (!fits_int(e) || e.real < 0) return in.expected("eos_token_id", e, "a token, a list of tokens or null");
    t.eos_tokens.push_back(static_cast<int>(e.real));
  }
}

inline void read_stored(config_reader& in, model_config& c) {
  const char* key = in.set("dtype") != nullptr ? "dtype" : "torch_dtype";
  const json* v = in.set(key);
  if (v == nullptr) return;
  for (const auto& [name, type] :
       {std::pair{"float32", dtype::f32}, {"float16", dtype::f16}, {"bfloat16", dtype::bf16}, {"float64", dtype::f64}})
    if (v->says(name)) return void(c.stored = type);
  in.expected(key, *v, "\"float32\", \"float16\", \"bfloat16\" or \"float64\"");
}

// Refuses a flag unless it is absent, null or `wanted`.
inline void must_be(config_reader& in, const char* key, bool wanted, const char* why) {
  const json* v = in.set(key);
  if (v != nullptr && !(v->is_boolean() && v->flag == wanted))
    in.reject('\'', key, "' is ", found(*v), ", expected ", wanted ? "true" : "false", ": ", why);
}

// Reads the length of sliding windows; returns false where the file says that there are none.
inline bool read_window_length(config_reader& in, int& window) {
  if (const json* v = in.at("sliding_window"); v != nullptr && v->is_null()) return false;
  in.integer("sliding_window", window, 1);
  return true;
}
// Sets the window of each layer (0: full attention). Layers for which slides(layer) holds have one; where `may_differ`,
// layer_types says it instead, as far as the model has windows.
template <class Slides>
void read_windows(config_reader& in, model_config& c, int window, bool may_differ, Slides slides) {
  c.window.assign(static_cast<std::size_t>(c.layers), 0);
  for (int l = 0; l < c.layers; ++l) c.window[static_cast<std::size_t>(l)] = window > 0 && slides(l) ? window : 0;
  const json* types = in.set("layer_types");
  if (types == nullptr) return;
  if (!types->is_list() || types->items.size() != c.window.size())
    return in.expected("layer_types", *types, "a list with one entry for each of the ", c.layers, " layers");
  for (std::size_t l = 0; l < c.window.size(); ++l) {
    const bool listed = types->items[l].says("sliding_attention");
    const bool possible = listed ? window > 0 : types->items[l].says("full_attention");
    if (!possible || (!may_differ && listed != (c.window[l] > 0)))
      return in.reject("'layer_types' says ", found(types->items[l]), " for layer ", number(l), ", which ",
                       c.family->name, " with this sliding_window does not have");
    c.window[l] = listed ? window : 0;
  }
}
inline void read_no_windows(config_reader& in, model_config& c) {
  read_windows(in, c, 0, false, [](int) { return false; });
}
inline void read_window_of_every_layer(config_reader& in, model_config& c, int usual) {
  int window = usual;
  if (!read_window_length(in, window)) window = 0;
  read_windows(in, c, window, false, [](int) { return true; });
}
// Qwen: the layers from max_window_layers on, or those that layer_types lists.
inline void read_windows_of_last_layers(config_reader& in, model_config& c) {
  bool used = false;
  int window = 4096, first = 28;
  in.flag("use_sliding_window", used), in.integer("max_window_layers", first, 0);
  if (used && !read_window_length(in, window)) used = false;
  read_windows(in, c, used ? window : 0, true, [&](int l) { return l >= first; });
}

}  // namespace graft::io::hf
