// SPDX-License-Identifier: Apache-2.0
// What FOURIERFT and WAVEFT share: how many coefficients of a layer are trained, and which, from random_loc_seed.
#pragma once
#include <graft/io/peft/places.h>
#include <graft/io/torch_random.h>

namespace graft::io::peft {

// With proportional_parameters the layers share the coefficients of all of them by their sizes.
inline result<long long> spectrum_size(const peft_source& s) {
  const auto entries = [](long long out, long long in) { return static_cast<double>(out) * static_cast<double>(in); };
  if (s.on("proportional_parameters") && s.base.among != nullptr) {
    double all = 0;
    for (const target_layers::sizes& t : s.base.among->all) all += entries(t.out, t.in);
    const double share = entries(s.base.out, s.base.in) / all;
    const double of_all = s.config.number("n_frequency") * static_cast<double>(s.base.among->all.size());
    return std::max(1LL, std::llrint(share * of_all));
  }
  if (s.on("proportional_parameters")) return static_cast<long long>(s.config.number("n_frequency"));
  const result<double> n = number_of(s.config, "n_frequency", "n_frequency_pattern", s.base.module);
  if (!n) return n.failure();
  return static_cast<long long>(*n);
}
inline status spectrum_numbers(peft_source& s) {
  const result<long long> n = spectrum_size(s);
  if (!n) return n.failure();
  if (*n > s.base.out * s.base.in)
    return fail_in(s.file.file, "'n_frequency' is ", *n, ", expected at most the ", s.base.out * s.base.in,
                   " entries of ", s.base.module.c_str());
  s.layer.sizes["n_frequency"] = *n;
  return ok;
}

// Rows, then columns, as many as the spectrum in the file has numbers.
inline result<std::vector<std::int64_t>> spectrum_places(const peft_source& s, const char* spectrum) {
  const loaded_tensor& v = s.layer.tensors.at(spectrum);  // before memory is taken for another number of them
  const long long n = s.layer.sizes.at("n_frequency"), all = s.base.out * s.base.in;
  if (v.shape.size() != 1 || v.shape[0] != n)
    return fail_in(s.file.file, "key ", in_quotes(v.key), ": tensor '", spectrum, "' has shape ", shape_text(v.shape),
                   ", expected [n_frequency] = [", n, "]");
  if (all >= largest_permutation)
    return fail_in(s.file.file, s.base.module.c_str(), " has ", all, " entries, expected fewer than ",
                   largest_permutation);
  mersenne_twister engine(static_cast<std::uint32_t>(s.config.seed("random_loc_seed")));
  return split_places(draw_permutation(engine, all, n), s.base.in);
}
// What the places depend on.
inline std::string spectrum_name(const peft_source& s, long long n) {
  return std::string(" of ") + shape_text({s.base.out, s.base.in, n}).c_str();
}

}  // namespace graft::io::peft
