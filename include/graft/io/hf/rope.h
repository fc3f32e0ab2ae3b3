// SPDX-License-Identifier: Apache-2.0
// RoPE fields of config.json: `rope_parameters` of transformers 5, or `rope_scaling` and `rope_theta` of earlier
// versions, where `type` is the old name of `rope_type` (transformers, modeling_rope_utils.py).
#pragma once
#include <graft/io/json/config_reader.h>
#include <graft/model/model_config.h>

namespace graft::io::hf {

inline void read_rope_type(config_reader& in, rope_settings& r) {
  constexpr std::pair<const char*, rope_kind> known[] = {{"default", rope_kind::plain},
                                                         {"linear", rope_kind::linear},
                                                         {"llama3", rope_kind::llama3},
                                                         {"yarn", rope_kind::yarn}};
  const char* key = in.set("rope_type") != nullptr ? "rope_type" : "type";
  const json* v = in.set(key);
  if (v == nullptr) return;
  for (const auto& [name, kind] : known)
    if (v->says(name)) return void(r.kind = kind);
  in.expected(key, *v, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
}

// Refuses unknown keys, since any of them may change the angles: sections of a head, factors by length, layer types.
inline void refuse_unknown_rope(config_reader& in) {
  constexpr const char* known[] = {"rope_type",
                                   "type",
                                   "rope_theta",
                                   "factor",
                                   "original_max_position_embeddings",
                                   "low_freq_factor",
                                   "high_freq_factor",
                                   "beta_fast",
                                   "beta_slow",
                                   "mscale",
                                   "mscale_all_dim",
                                   "attention_factor",
                                   "truncate",
                                   "partial_rotary_factor"};
  for (std::size_t i = 0; i < in.object.keys.size(); ++i) {
    const bool is_known =
        std::any_of(std::begin(known), std::end(known), [&](auto k) { return in.object.keys[i] == k; });
    if (!is_known && !in.object.items[i].is_null())
      in.reject(in_quotes(in.object.keys[i]), " is not a setting of rotary positions that is supported");
  }
}

inline void above_zero(config_reader& in, const char* key, double& out) {
  if (in.set(key) == nullptr) return;
  in.real(key, out);
  if (!in.problem && !(out > 0)) in.expected(key, *in.at(key), "a number above 0");
}

inline void read_scaling(config_reader& in, rope_settings& r, int positions) {
  const bool bands = r.kind == rope_kind::llama3, yarn = r.kind == rope_kind::yarn;
  if (r.original_positions == 0) {
    r.original_positions = positions;
    above_zero(in, "original_max_position_embeddings", r.original_positions);
  }
  if (in.set("factor") == nullptr && yarn)
    r.factor = positions / r.original_positions;
  else if (in.set("factor") == nullptr)
    in.reject("'factor' is missing, which this rope_type needs");
  above_zero(in, "factor", r.factor);
  for (const char* key : {"low_freq_factor", "high_freq_factor"})
    if (bands && in.set(key) == nullptr) in.reject('\'', key, "' is missing, which rope_type \"llama3\" needs");
  above_zero(in, "low_freq_factor", r.low_frequency);
  above_zero(in, "high_freq_factor", r.high_frequency);
  if (bands && !(r.low_frequency < r.high_frequency)) in.reject("'low_freq_factor' is not below 'high_freq_factor'");
  // As in transformers, 0 selects the default.
  for (const auto& [key, to] : {std::pair{"beta_fast", &r.beta_fast}, {"beta_slow", &r.beta_slow}})
    if (const json* v = in.set(key); v != nullptr && !(v->is_number() && v->real == 0)) above_zero(in, key, *to);
  for (const auto& [key, to] : {std::pair{"mscale", &r.mscale}, {"mscale_all_dim", &r.mscale_all}})
    if (in.set(key) != nullptr) in.real(key, *to);
  if (in.set("attention_factor") != nullptr) in.real("attention_factor", r.attention_factor.emplace());
  in.flag("truncate", r.truncate);
}

inline void read_rope(config_reader& top, model_config& c) {
  rope_settings& r = c.rope;
  above_zero(top, "rope_theta", r.theta);
  if (top.set("original_max_position_embeddings") != nullptr)
    above_zero(top, "original_max_position_embeddings", r.original_positions);
  const char* key = top.set("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  for (const json* holder : {&top.object, top.set(key)})
    if (const json* part = holder != nullptr ? holder->find("partial_rotary_factor") : nullptr;
        part != nullptr && !part->is_null() && !(part->is_number() && part->real == 1))
      top.expected("partial_rotary_factor", *part, "1: RoPE rotates whole heads");
  const json* v = top.set(key);
  if (v == nullptr) return;
  if (!v->is_object()) return top.expected(key, *v, "an object or null");
  config_reader in{*v, top.file + " (" + key + ")"};
  refuse_unknown_rope(in);
  read_rope_type(in, r);
  above_zero(in, "rope_theta", r.theta);
  if (r.kind != rope_kind::plain && !in.problem) read_scaling(in, r, c.positions);
  if (in.problem && !top.problem) top.problem = in.problem;
}

}  // namespace graft::io::hf
