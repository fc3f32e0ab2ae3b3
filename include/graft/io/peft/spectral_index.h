// SPDX-License-Identifier: Apache-2.0
// Shared by FourierFT and WaveFT: number and indices of the trained coefficients of a layer, from random_loc_seed.
#pragma once
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/random/torch.h>

namespace graft::io::peft {

// With proportional_parameters the total number of coefficients is divided among the layers by their sizes.
inline result<long long> spectral_size(const peft_layer_state& s) {
  const auto entries = [](long long out, long long in) { return static_cast<double>(out) * static_cast<double>(in); };
  if (s.on("proportional_parameters") && s.base.all_targets != nullptr) {
    double all = 0;
    for (const target_layers::sizes& t : s.base.all_targets->all) all += entries(t.out, t.in);
    const double share = entries(s.base.out, s.base.in) / all;
    const double of_all = s.config.number("n_frequency") * static_cast<double>(s.base.all_targets->all.size());
    return std::max(1LL, std::llrint(share * of_all));
  }
  if (s.on("proportional_parameters")) return static_cast<long long>(s.config.number("n_frequency"));
  const result<double> n = number_of(s.config, "n_frequency", "n_frequency_pattern", s.base.module);
  if (!n) return n.failure();
  return static_cast<long long>(*n);
}
inline status spectral_numbers(peft_layer_state& s) {
  const result<long long> n = spectral_size(s);
  if (!n) return n.failure();
  if (*n > s.base.out * s.base.in)
    return fail_in(s.file.file, "'n_frequency' is ", *n, ", expected at most the ", s.base.out * s.base.in,
                   " entries of ", s.base.module.c_str());
  s.layer.sizes["n_frequency"] = *n;
  return ok;
}

// Row indices, then column indices, of the n_frequency coefficients.
inline result<std::vector<std::int64_t>> spectral_indices(const peft_layer_state& s) {
  const long long n = s.layer.sizes.at("n_frequency"), all = s.base.out * s.base.in;
  if (all >= largest_permutation)
    return fail_in(s.file.file, s.base.module.c_str(), " has ", all, " entries, expected fewer than ",
                   largest_permutation);
  mersenne_twister engine(static_cast<std::uint32_t>(s.config.seed("random_loc_seed")));
  return split_indices(draw_permutation(engine, all, n), s.base.in);
}
// Identifies everything the indices depend on within an adapter, for peft_layer_state::once().
inline std::string spectral_name(const peft_layer_state& s, long long n) {
  return std::string(" of ") + shape_text({s.base.out, s.base.in, n}).c_str();
}

}  // namespace graft::io::peft
