// SPDX-License-Identifier: Apache-2.0
// RandLoRA in PEFT's format (RANDLORA). All layers share one pair of bases with the sizes of the largest layer, and
// each layer uses their leading corner. With save_projection the file holds them, also once per module; otherwise they
// are drawn from projection_prng_key.
//     scaling = randlora_alpha / r
#pragma once
#include <graft/adapter/randlora.h>
#include <graft/io/peft/layer_source.h>
#include <graft/io/peft/randlora_bases.h>

namespace graft::io::peft {

inline status randlora_numbers(peft_layer_state& s) {
  const long long r = s.config.whole("r"), shorter = std::min(s.base.out, s.base.in);
  s.layer.sizes["num_bases"] = (shorter + r - 1) / r;
  s.layer.scalars["scaling"] = s.config.number("randlora_alpha") / static_cast<double>(r);
  return ok;
}

inline status randlora_frozen(peft_layer_state& s) {
  if (s.on("save_projection")) return ok;
  const long long r = s.config.whole("r"), out = std::max(s.base.out, s.base.largest_out),
                  in = std::max(s.base.in, s.base.largest_in);
  const sparsity zeros = s.on("very_sparse") ? sparsity::very : s.on("sparse") ? sparsity::some : sparsity::none;
  result<randlora_bases> made = make_randlora_bases(s.config.seed("projection_prng_key"), r, out, in, zeros);
  if (!made) return made.failure();
  const long long shorter = std::min(out, in), n = (shorter + r - 1) / r;
  s.layer.tensors["randlora_A"] = {
      "randlora_A from projection_prng_key", std::move(made->A), {r, 1, shorter}, safetensors_type::f32, false};
  s.layer.tensors["randlora_B"] = {"randlora_B from projection_prng_key",
                                   std::move(made->B),
                                   {std::max(out, in), n, r},
                                   safetensors_type::f32,
                                   false};
  return ok;
}

inline constexpr peft_key randlora_keys[] = {whole("r", 32),
                                             real("randlora_alpha", 640),
                                             seed("projection_prng_key"),
                                             flag("save_projection", true),
                                             flag("sparse"),
                                             flag("very_sparse"),
                                             dropout("randlora_dropout"),
                                             word("init_weights", "true", "true false")};
inline constexpr peft_variant randlora_variants[] = {
    variant<randlora<>>([](const peft_layer_state& s) { return s.base.in <= s.base.out; }),
    variant<randlora<dyn, randlora_shape::wide>>()};
inline constexpr tensor_layout randlora_layouts[] = {
    {.leaf = "randlora_A", .shape = tensor_shape_kind::corner, .shared = true, .copied = true},
    {.leaf = "randlora_B", .shape = tensor_shape_kind::corner, .shared = true, .copied = true}};
inline constexpr peft_method randlora_files{.type = "RANDLORA",
                                            .bias_only = "randlora_only",
                                            .keys = randlora_keys,
                                            .variants = randlora_variants,
                                            .layouts = randlora_layouts,
                                            .numbers = randlora_numbers,
                                            .frozen = randlora_frozen};

}  // namespace graft::io::peft
