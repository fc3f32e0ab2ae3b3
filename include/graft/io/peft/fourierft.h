// SPDX-License-Identifier: Apache-2.0
// FourierFT in PEFT's format (FOURIERFT). random_loc_seed and the sizes of the layer determine which coefficients are
// trained; the frozen cosines and sines of adapter/fourierft.h follow from them.
#pragma once
#include <graft/adapter/fourierft.h>
#include <graft/io/peft/spectral_index.h>

namespace graft::io::peft {

inline status fourierft_frozen(peft_layer_state& s) {
  const result<std::vector<std::int64_t>> drawn = spectral_indices(s);
  if (!drawn) return drawn.failure();
  const std::vector<std::int64_t>& indices = *drawn;
  const std::size_t n = indices.size() / 2;
  const long long out = s.base.out, in = s.base.in;
  // cos or sin of 2π t / size for every t; all entries of the factors are among these.
  const auto basis = [](long long size, bool sine) {
    std::vector<double> all;
    for (long long t = 0; t < size; ++t) {
      const double angle = 2 * 3.14159265358979323846 * static_cast<double>(t) / static_cast<double>(size);
      all.push_back(sine ? std::sin(angle) : std::cos(angle));
    }
    return all;
  };
  const std::string of = spectral_name(s, static_cast<long long>(n));
  const std::string rows = "fourierft_rows" + of;
  s.layer.tensors["fourierft_rows"] = s.once(rows, [&] {
    loaded_tensor t{rows, {}, {out, static_cast<long long>(2 * n)}, safetensors_type::f32, false};
    const std::vector<double> cosine = basis(out, false), sine = basis(out, true);
    for (long long i = 0; i < out; ++i)
      for (const std::vector<double>* table : {&cosine, &sine})
        for (std::size_t p = 0; p < n; ++p)
          t.data.push_back(static_cast<float>((*table)[static_cast<std::size_t>(indices[p] * i % out)]));
    return t;
  });
  const std::string columns = "fourierft_columns" + of;
  s.layer.tensors["fourierft_columns"] = s.once(columns, [&] {
    loaded_tensor t{columns, {}, {static_cast<long long>(2 * n), in}, safetensors_type::f32, false};
    const std::vector<double> cosine = basis(in, false), sine = basis(in, true);
    const double size = static_cast<double>(out) * static_cast<double>(in);
    for (const bool second : {false, true})
      for (std::size_t p = 0; p < n; ++p)
        for (long long j = 0; j < in; ++j) {
          const auto sample = static_cast<std::size_t>(indices[n + p] * j % in);
          t.data.push_back(static_cast<float>((second ? -sine[sample] : cosine[sample]) / size));
        }
    return t;
  });
  return ok;
}

inline constexpr peft_key fourierft_keys[] = {whole("n_frequency", 1000), real("scaling", 150),
                                              seed("random_loc_seed", 777), integers_by_module("n_frequency_pattern"),
                                              flag("init_weights")};
inline constexpr peft_variant fourierft_variants[] = {variant<fourierft<>>()};
inline constexpr peft_method fourierft_files{.type = "FOURIERFT",
                                             .bias_only = "fourier_only",
                                             .bias_also = "fourierft_only",
                                             .keys = fourierft_keys,
                                             .variants = fourierft_variants,
                                             .numbers = spectral_numbers,
                                             .frozen = fourierft_frozen};

}  // namespace graft::io::peft
