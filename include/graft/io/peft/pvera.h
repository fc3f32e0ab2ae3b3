// SPDX-License-Identifier: Apache-2.0
// PVeRA in PEFT's format (PVERA), as VeRA's with twice as many rows in A and λ_d.
#pragma once
#include <graft/adapter/pvera.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/layer_source.h>
#include <graft/io/peft/vera_projection.h>

namespace graft::io::peft {

inline status pvera_frozen(peft_layer_state& s) {
  if (s.on("save_projection")) return ok;
  const long long r = s.config.whole("r"), in = std::max(s.base.in, s.base.largest_in),
                  out = std::max(s.base.out, s.base.largest_out);
  result<vera_projection> p = make_vera_projection(s.config.seed("projection_prng_key"), r, in, out, 2 * r);
  if (!p) return p.failure();
  s.layer.tensors["pvera_A"] = {
      "pvera_A from projection_prng_key", std::move(p->A), {2 * r, in}, safetensors_type::f32, false};
  s.layer.tensors["pvera_B"] = {
      "pvera_B from projection_prng_key", std::move(p->B), {out, r}, safetensors_type::f32, false};
  return ok;
}
inline void check_pvera(config_reader& in, const adapter_config& c) {
  if (c.on("sample_at_inference"))
    in.reject(
        "'sample_at_inference' is true, expected false: what the layer computes would be drawn anew in every call");
}

inline constexpr peft_key pvera_keys[] = {whole("r", 256),
                                          seed("projection_prng_key"),
                                          flag("save_projection", true),
                                          dropout("pvera_dropout"),
                                          real("d_initial", 0.1),
                                          flag("init_weights", true),
                                          flag("sample_at_inference"),
                                          or_null(seed("generator_seed"))};
inline constexpr peft_variant pvera_variants[] = {variant<pvera<>>()};
inline constexpr tensor_layout pvera_layouts[] = {{"pvera_A", tensor_shape_kind::corner, true},
                                                  {"pvera_B", tensor_shape_kind::corner, true}};
inline constexpr peft_method pvera_files{.type = "PVERA",
                                         .bias_only = "pvera_only",
                                         .keys = pvera_keys,
                                         .variants = pvera_variants,
                                         .layouts = pvera_layouts,
                                         .frozen = pvera_frozen,
                                         .check = check_pvera};

}  // namespace graft::io::peft
