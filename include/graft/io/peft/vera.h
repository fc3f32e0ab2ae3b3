// SPDX-License-Identifier: Apache-2.0
// VeRA in PEFT's format (VERA). All layers share one pair of projections with the sizes of the largest layer, and each
// layer uses their leading corner. With save_projection false they are drawn from projection_prng_key.
#pragma once
#include <graft/adapter/vera.h>
#include <graft/io/peft/layer_source.h>
#include <graft/io/peft/vera_projection.h>

namespace graft::io::peft {

inline status vera_frozen(peft_layer_state& s) {
  if (s.on("save_projection")) return ok;
  const int r = s.config.whole("r");
  const long long in = std::max(s.base.in, s.base.largest_in), out = std::max(s.base.out, s.base.largest_out);
  result<vera_projection> p = make_vera_projection(s.config.seed("projection_prng_key"), r, in, out);
  if (!p) return p.failure();
  s.layer.tensors["vera_A"] = {
      "vera_A from projection_prng_key", std::move(p->A), {r, in}, safetensors_type::f32, false};
  s.layer.tensors["vera_B"] = {
      "vera_B from projection_prng_key", std::move(p->B), {out, r}, safetensors_type::f32, false};
  return ok;
}

inline constexpr peft_key vera_keys[] = {
    whole("r", 256),         seed("projection_prng_key"), flag("save_projection", true),
    dropout("vera_dropout"), real("d_initial", 0.1),      word("init_weights", "true", "true false")};
inline constexpr peft_variant vera_variants[] = {variant<vera<>>()};
inline constexpr tensor_layout vera_layouts[] = {{"vera_A", tensor_shape_kind::corner, true},
                                                 {"vera_B", tensor_shape_kind::corner, true}};
inline constexpr peft_method vera_files{.type = "VERA",
                                        .bias_only = "vera_only",
                                        .keys = vera_keys,
                                        .variants = vera_variants,
                                        .layouts = vera_layouts,
                                        .frozen = vera_frozen};

}  // namespace graft::io::peft
