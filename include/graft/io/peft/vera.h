// SPDX-License-Identifier: Apache-2.0
// VERA in PEFT's files. The projections are one pair for all layers, as large as the largest; each layer takes their
// corner. With save_projection false they are drawn again from the key.
#pragma once
#include <graft/adapter/vera.h>
#include <graft/io/peft/source.h>
#include <graft/io/vera_projection.h>

namespace graft::io::peft {

inline status vera_frozen(peft_source& s) {
  if (s.on("save_projection")) return ok;
  const int r = s.config.whole("r");
  const loaded_tensor& d = s.layer.tensors.at("vera_lambda_d");  // before memory is taken for a rank that is not there
  if (d.shape.size() != 1 || d.shape[0] != r)
    return fail_in(s.file.file, "key ", in_quotes(d.key),
                   ": tensor 'vera_lambda_d' is no vector of r numbers, expected [r] = [", r, "]");
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
inline constexpr peft_place vera_places[] = {{"vera_A", stored_as::corner, true}, {"vera_B", stored_as::corner, true}};
inline constexpr peft_method vera_files{.type = "VERA",
                                        .bias_only = "vera_only",
                                        .keys = vera_keys,
                                        .variants = vera_variants,
                                        .places = vera_places,
                                        .frozen = vera_frozen};

}  // namespace graft::io::peft
