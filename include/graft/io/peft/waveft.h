// SPDX-License-Identifier: Apache-2.0
// WaveFT in PEFT's format (WAVEFT). random_loc_seed and the sizes of the layer determine which coefficients are
// trained. They are the center of a matrix whose axes are longer by the filter length − 2 and made even; its quarters
// are the approximation and the details of rows, of columns and of both.
#pragma once
#include <graft/adapter/waveft.h>
#include <graft/io/peft/spectral_index.h>
#include <graft/io/peft/wavelets.h>

namespace graft::io::peft {

// The entries of an axis that the coefficient at index `at` affects: the first one, and which filter weights them.
struct wavelet_reach {
  long long first;
  bool detail;
};
inline wavelet_reach reach_of(long long at, long long size, long long length) {
  const long long padded = size + length - 2 + size % 2, half = padded / 2;
  const long long place = at + (padded - size) / 2;
  return {2 * (place % half) - (length - 2), place >= half};
}

inline status waveft_frozen(peft_layer_state& s) {
  const result<std::vector<std::int64_t>> drawn = spectral_indices(s);
  if (!drawn) return drawn.failure();
  const std::size_t n = drawn->size() / 2;
  std::vector<float> low{1}, high{1};
  for (const wavelet& w : wavelets)
    if (s.on("use_idwt") && s.config.word("wavelet_family") == w.name) {
      low.assign(w.low.begin(), w.low.end()), high.assign(w.low.rbegin(), w.low.rend());
      for (std::size_t i = 1; i < high.size(); i += 2) high[i] = -high[i];
    }
  const auto length = static_cast<long long>(low.size());
  loaded_tensor taps{
      s.prefix() + "waveft_taps", {}, {static_cast<long long>(n), length * length}, safetensors_type::f32, false};
  loaded_tensor indices{s.prefix() + "waveft_indices",
                        {},
                        {2, static_cast<long long>(n) * length * length},
                        safetensors_type::i64,
                        false};
  std::vector<std::int64_t> cols;
  for (std::size_t k = 0; k < n; ++k) {
    wavelet_reach row{(*drawn)[k], false}, col{(*drawn)[n + k], false};
    if (s.on("use_idwt")) row = reach_of(row.first, s.base.out, length), col = reach_of(col.first, s.base.in, length);
    // PEFT uses the right quarter for the details of rows and the lower one for those of columns.
    const std::vector<float>&by_row = col.detail ? high : low, &by_col = row.detail ? high : low;
    for (long long i = 0; i < length; ++i)
      for (long long j = 0; j < length; ++j) {
        const long long r = row.first + i, c = col.first + j;
        const bool inside = r >= 0 && r < s.base.out && c >= 0 && c < s.base.in;
        const float tap = by_row[static_cast<std::size_t>(i)] * by_col[static_cast<std::size_t>(j)];
        taps.data.push_back(inside ? tap : 0);
        indices.indices.push_back(inside ? r : 0), cols.push_back(inside ? c : 0);
      }
  }
  indices.indices.insert(indices.indices.end(), cols.begin(), cols.end());
  s.layer.sizes["taps"] = length * length;
  s.layer.tensors["waveft_taps"] = std::move(taps);
  s.layer.tensors["waveft_indices"] = std::move(indices);
  return ok;
}

inline constexpr peft_key waveft_keys[] = {
    whole("n_frequency", 2592),      real("scaling", 25),          word("wavelet_family", "db1", wavelet_names),
    flag("use_idwt", true),          seed("random_loc_seed", 777), integers_by_module("n_frequency_pattern"),
    flag("proportional_parameters"), flag("init_weights", true)};
inline constexpr peft_variant waveft_variants[] = {variant<waveft<>>()};
inline constexpr peft_method waveft_files{.type = "WAVEFT",
                                          .bias_only = "waveft_only",
                                          .keys = waveft_keys,
                                          .variants = waveft_variants,
                                          .numbers = spectral_numbers,
                                          .frozen = waveft_frozen};

}  // namespace graft::io::peft
