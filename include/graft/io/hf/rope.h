// SPDX-License-Identifier: Apache-2.0
// RoPE fields of config.json: `rope_parameters` of transformers 5, or `rope_scaling` and `rope_theta` of earlier
// versions, where `type` is the old name of `rope_type` (transformers, modeling_rope_utils.py).
#pragma once
#include <graft/io/json/config_reader.h>
#include <graft/model/model_config.h>

namespace graft::io::hf {

// The kinds of RoPE that a family allows in addition to those of all families.
struct rope_rules {
  bool partial = false;         // partial_rotary_factor may be below 1
  bool longrope_alone = false;  // Phi-3: the other kinds do not exist, and two of their names are old names of longrope
};

inline void read_rope_type(config_reader& in, rope_settings& r, const rope_rules& rules) {
  static constexpr std::pair<const char*, rope_kind> all[] = {{"default", rope_kind::plain},
                                                              {"linear", rope_kind::linear},
                                                              {"llama3", rope_kind::llama3},
                                                              {"yarn", rope_kind::yarn},
                                                              {"longrope", rope_kind::longrope}};
  static constexpr std::pair<const char*, rope_kind> phi3[] = {{"default", rope_kind::plain},
                                                               {"longrope", rope_kind::longrope},
                                                               {"su", rope_kind::longrope},
                                                               {"yarn", rope_kind::longrope}};
  const char* key = in.set("rope_type") != nullptr ? "rope_type" : "type";
  const json* v = in.set(key);
  if (v == nullptr) return;
  if (rules.longrope_alone) {
    for (const auto& [name, kind] : phi3)
      if (v->says(name)) return void(r.kind = kind);
    return in.expected(key, *v, "\"default\" or \"longrope\"");
  }
  for (const auto& [name, kind] : all)
    if (v->says(name)) return void(r.kind = kind);
  in.expected(key, *v, "\"default\", \"linear\", \"llama3\", \"yarn\" or \"longrope\"");
}

// Refuses unknown keys, since any of them may change the angles: sections of a head, layer types.
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
                                   "short_factor",
                                   "long_factor",
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

// Reads LongRoPE's divisors, one for each pair of elements that are rotated; check_sizes() counts them.
inline void read_divisors(config_reader& in, const char* key, std::vector<float>& to) {
  const json* v = in.set(key);
  if (v == nullptr) return in.reject('\'', key, "' is missing, which rope_type \"longrope\" needs");
  if (!v->is_list()) return in.expected(key, *v, "a list of numbers");
  to.clear();
  for (const json& e : v->items) {
    if (!e.is_number() || !(e.real >= 1e-6 && e.real <= 1e6))
      return in.reject('\'', key, "' holds ", found(e), ", expected only numbers from 1e-6 to 1e6");
    to.push_back(static_cast<float>(e.real));
  }
}

inline void read_scaling(config_reader& in, rope_settings& r, int positions) {
  const bool bands = r.kind == rope_kind::llama3, longrope = r.kind == rope_kind::longrope,
             has_usual_factor = r.kind == rope_kind::yarn || longrope;
  if (r.original_positions == 0) {
    r.original_positions = positions;
    above_zero(in, "original_max_position_embeddings", r.original_positions);
  }
  if (in.set("factor") == nullptr && has_usual_factor)
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
  if (!longrope) return;
  read_divisors(in, "short_factor", r.divisors), read_divisors(in, "long_factor", r.long_divisors);
  if (!in.problem && !(r.original_positions > 1))
    in.reject("'original_max_position_embeddings' is 1, expected more for rope_type \"longrope\"");
}

inline void read_partial(config_reader& in, rope_settings& r, const rope_rules& rules) {
  const json* v = in.set("partial_rotary_factor");
  if (v == nullptr) return;
  if (!v->is_number() || !(v->real > 0 && v->real <= 1))
    return in.expected("partial_rotary_factor", *v, "a number above 0 and at most 1");
  if (!rules.partial && v->real != 1) return in.expected("partial_rotary_factor", *v, "1: RoPE rotates whole heads");
  r.partial = v->real;
}

// Reads one object of settings, `v`, which is the value of `path`.
inline void read_rope_object(config_reader& top, const json& v, const char* path, rope_settings& r, int positions,
                             const rope_rules& rules = {}) {
  if (!v.is_object()) return top.expected(path, v, "an object or null");
  config_reader in{v, top.file + " (" + path + ")"};
  refuse_unknown_rope(in);
  read_rope_type(in, r, rules);
  above_zero(in, "rope_theta", r.theta);
  read_partial(in, r, rules);
  if (r.kind != rope_kind::plain && !in.problem) read_scaling(in, r, positions);
  if (in.problem && !top.problem) top.problem = in.problem;
}

inline void read_rope(config_reader& top, model_config& c, const rope_rules& rules = {}) {
  rope_settings& r = c.rope;
  above_zero(top, "rope_theta", r.theta);
  read_partial(top, r, rules);
  if (top.set("original_max_position_embeddings") != nullptr)
    above_zero(top, "original_max_position_embeddings", r.original_positions);
  const char* key = top.set("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  if (const json* v = top.set(key)) read_rope_object(top, *v, key, r, c.positions, rules);
}

// Settings for each type of layer: rope_parameters holds an object for each. In files of transformers 4 rope_theta and
// rope_scaling are those of layers with full attention, rope_local_base_freq is the theta of layers with a window.
inline void read_rope_by_layer_type(config_reader& top, model_config& c) {
  rope_settings& sliding = *c.sliding_rope;
  above_zero(top, "rope_theta", c.rope.theta);
  above_zero(top, "rope_local_base_freq", sliding.theta);
  read_partial(top, c.rope, {});
  if (const json* v = top.set("rope_parameters")) {
    if (!v->is_object()) return top.expected("rope_parameters", *v, "an object or null");
    for (std::size_t i = 0; i < v->keys.size(); ++i) {
      const bool is_full = v->keys[i] == "full_attention", is_sliding = v->keys[i] == "sliding_attention";
      if (!is_full && !is_sliding)
        return top.reject("'rope_parameters' has the key ", in_quotes(v->keys[i]),
                          ", expected 'full_attention' and 'sliding_attention', each with settings of its own");
      if (v->items[i].is_null()) continue;
      read_rope_object(top, v->items[i],
                       is_full ? "rope_parameters.full_attention" : "rope_parameters.sliding_attention",
                       is_full ? c.rope : sliding, c.positions);
    }
  }
  if (const json* v = top.set("rope_scaling")) read_rope_object(top, *v, "rope_scaling", c.rope, c.positions);
}

}  // namespace graft::io::hf
