// SPDX-License-Identifier: Apache-2.0
// RANDLORA in PEFT's files. The bases are one pair for all layers, drawn at the size of the largest; each layer takes
// their corner. With save_projection false they are drawn again from the key; with it PEFT writes them into every module too.
//     scaling = randlora_alpha / r
#pragma once
#include <graft/adapter/randlora.h>
#include <graft/io/peft/randlora_bases.h>
#include <graft/io/peft/source.h>

namespace graft::io::peft {

inline status randlora_numbers(peft_source& s) {
  const long long r = s.config.whole("r"), shorter = std::min(s.base.out, s.base.in);
  s.layer.sizes["num_bases"] = (shorter + r - 1) / r;
  s.layer.scalars["scaling"] = s.config.number("randlora_alpha") / static_cast<double>(r);
  return ok;
}

inline status randlora_frozen(peft_source& s) {
  if (s.on("save_projection")) return ok;
  const loaded_tensor& lambda = s.layer.tensors.at("randlora_lambda");  // before memory is taken for another rank
  const long long r = s.config.whole("r");
  if (lambda.shape.size() != 2 || lambda.shape[0] != r)
    return fail_in(s.file.file, "key ", in_quotes(lambda.key),
                   ": tensor 'randlora_lambda' has not r rows, expected [r, num_bases] = [", r, ", ",
                   s.layer.sizes.at("num_bases"), "]");
  const long long out = std::max(s.base.out, s.base.largest_out), in = std::max(s.base.in, s.base.largest_in);
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
    variant<randlora<>>([](const peft_source& s) { return s.base.in <= s.base.out; }),
    variant<randlora<dyn, randlora_shape::wide>>()};
inline constexpr peft_place randlora_places[] = {
    {.leaf = "randlora_A", .shape = stored_as::corner, .shared = true, .copied = true},
    {.leaf = "randlora_B", .shape = stored_as::corner, .shared = true, .copied = true}};
inline constexpr peft_method randlora_files{.type = "RANDLORA",
                                            .bias_only = "randlora_only",
                                            .keys = randlora_keys,
                                            .variants = randlora_variants,
                                            .places = randlora_places,
                                            .numbers = randlora_numbers,
                                            .frozen = randlora_frozen};

}  // namespace graft::io::peft
