// SPDX-License-Identifier: Apache-2.0
// PSOFT in PEFT's format. The frozen A and B are in no file: they follow from the base weight W = U S Vᵀ by
// torch.linalg.svd, or by torch.svd_lowrank with a seed.
//     psoft_init    A = Vᵀ, B = U S / s          pissa_init    A = sqrt(S / s) Vᵀ, B = U sqrt(S / s)
//     scaling s = psoft_alpha / r
#pragma once
#include <graft/adapter/psoft.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/layer_source.h>
#include <graft/io/svd/low_rank.h>

namespace graft::io::peft {

inline status psoft_numbers(peft_layer_state& s) {
  s.layer.scalars["scaling"] = s.config.number("psoft_alpha") / s.config.number("r");
  return ok;
}
inline void check_psoft(config_reader& in, const adapter_config& c) {
  const double eps = c.number("cayley_neumann_eps");
  if (c.set("cayley_neumann_eps") != nullptr && (eps <= 0 || eps >= 1))
    in.reject("'cayley_neumann_eps' is ", found(*in.at("cayley_neumann_eps")), ", expected a number between 0 and 1");
}

inline status psoft_frozen(peft_layer_state& s) {
  const long long r = s.config.whole("r"), out = s.base.out, in = s.base.in;
  const view& w = s.base.weight;
  if (w.data == nullptr || w.type != dtype::f32 || w.rank != 2 || w.size[0] != out || w.size[1] != in)
    return fail_in(s.file.file,
                   "PSOFT's frozen factors follow from the base weight: give it to read_peft_layer as "
                   "base_layer::weight, float [",
                   out, ", ", in, "]");
  if (r > std::min(out, in))
    return fail_in(s.file.file, "'r' is ", r, ", expected at most the smaller dimension of the layer, ",
                   std::min(out, in));
  svd::matrix a(static_cast<std::size_t>(out), static_cast<std::size_t>(in));
  for (long long i = 0; i < out; ++i)
    for (long long j = 0; j < in; ++j)
      a(static_cast<std::size_t>(i), static_cast<std::size_t>(j)) =
          static_cast<const float*>(w.data)[i * w.stride(0) + j * w.stride(1)];
  const auto rank = static_cast<std::size_t>(r);
  const svd::singular_triplets p =
      s.config.word("psoft_svd") == "full"
          ? svd::largest_singular_triplets(std::move(a), rank)
          : svd::randomized_svd(std::move(a), rank, s.config.whole("psoft_svd_lowrank_niter"),
                                s.config.seed("random_seed"));
  const bool pissa = s.config.word("ab_svd_init") == "pissa_init";
  loaded_tensor A{s.prefix() + "psoft_A", {}, {r, in}, safetensors_type::f32, false};
  loaded_tensor B{s.prefix() + "psoft_B",
                  std::vector<float>(static_cast<std::size_t>(out * r)),
                  {out, r},
                  safetensors_type::f32,
                  false};
  for (std::size_t k = 0; k < rank; ++k) {
    const double size = p.values[k] / s.layer.scalars.at("scaling"), root = pissa ? std::sqrt(size) : 1;
    for (const double v : p.right[k]) A.data.push_back(static_cast<float>(v * root));
    for (std::size_t i = 0; i < p.left[k].size(); ++i)
      B.data[i * rank + k] = static_cast<float>(p.left[k][i] * (pissa ? root : size));
  }
  s.layer.tensors["psoft_A"] = std::move(A);
  s.layer.tensors["psoft_B"] = std::move(B);
  return ok;
}

template <psoft_rotation Rotation, psoft_magnitudes Magnitudes> constexpr bool is_psoft(const peft_layer_state& s) {
  const bool series = s.on("use_cayley_neumann"), bounded = s.config.set("cayley_neumann_eps") != nullptr;
  const psoft_rotation rotation = !s.on("psoft_orth") ? psoft_rotation::free
                                  : !series           ? psoft_rotation::cayley
                                  : bounded           ? psoft_rotation::bounded
                                                      : psoft_rotation::neumann;
  using form = psoft<dyn, Rotation, Magnitudes>;
  return rotation == Rotation && s.on("psoft_mag_a") == form::scales_inputs &&
         s.on("psoft_mag_b") == form::scales_outputs;
}
template <psoft_rotation Rotation, psoft_magnitudes Magnitudes> constexpr peft_variant psoft_variant() {
  return variant<psoft<dyn, Rotation, Magnitudes>>(is_psoft<Rotation, Magnitudes>);
}

inline constexpr peft_key psoft_keys[] = {whole("r", 32),
                                          real("psoft_alpha", 32),
                                          dropout("psoft_dropout"),
                                          word("ab_svd_init", "psoft_init", "psoft_init pissa_init"),
                                          word("psoft_svd", "full", "full lowrank"),
                                          whole("psoft_svd_lowrank_niter", 10, 0, max_iterations),
                                          seed("random_seed"),
                                          flag("psoft_orth", true),
                                          flag("psoft_mag_a", true),
                                          flag("psoft_mag_b", true),
                                          flag("use_cayley_neumann"),
                                          whole("num_cayley_neumann_terms", 5, 1, max_iterations),
                                          or_null(real("cayley_neumann_eps", 0)),
                                          word("init_weights", "true", "true false")};
inline constexpr peft_variant psoft_variants[] = {psoft_variant<psoft_rotation::cayley, psoft_magnitudes::both>(),
                                                  psoft_variant<psoft_rotation::cayley, psoft_magnitudes::inputs>(),
                                                  psoft_variant<psoft_rotation::cayley, psoft_magnitudes::outputs>(),
                                                  psoft_variant<psoft_rotation::cayley, psoft_magnitudes::none>(),
                                                  psoft_variant<psoft_rotation::neumann, psoft_magnitudes::both>(),
                                                  psoft_variant<psoft_rotation::neumann, psoft_magnitudes::inputs>(),
                                                  psoft_variant<psoft_rotation::neumann, psoft_magnitudes::outputs>(),
                                                  psoft_variant<psoft_rotation::neumann, psoft_magnitudes::none>(),
                                                  psoft_variant<psoft_rotation::bounded, psoft_magnitudes::both>(),
                                                  psoft_variant<psoft_rotation::bounded, psoft_magnitudes::inputs>(),
                                                  psoft_variant<psoft_rotation::bounded, psoft_magnitudes::outputs>(),
                                                  psoft_variant<psoft_rotation::bounded, psoft_magnitudes::none>(),
                                                  psoft_variant<psoft_rotation::free, psoft_magnitudes::both>(),
                                                  psoft_variant<psoft_rotation::free, psoft_magnitudes::inputs>(),
                                                  psoft_variant<psoft_rotation::free, psoft_magnitudes::outputs>(),
                                                  psoft_variant<psoft_rotation::free, psoft_magnitudes::none>()};
inline constexpr peft_method psoft_files{.type = "PSOFT",
                                         .keys = psoft_keys,
                                         .variants = psoft_variants,
                                         .numbers = psoft_numbers,
                                         .frozen = psoft_frozen,
                                         .check = check_psoft};

}  // namespace graft::io::peft
