// SPDX-License-Identifier: Apache-2.0
// WaveFT: a few coefficients of the wavelet transform of the update (Bilican et al. 2025, arXiv 2505.12532).
//     W' = W + s idwt2(F),   F zero but for n elements        = W + s scatter_elements(v ⊙ taps, index)
// One coefficient adds a product of two short filters, L² entries of the weight; without the transform it adds one.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Frequencies = dyn, int Taps = dyn> struct waveft {
  static constexpr const char *name = "WaveFT", *method = "waveft", *kinds = "linear";
  using sample = waveft<256, 4>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("n_frequency", Frequencies, 2592), taps = p.size("taps", Taps, 4);
    auto values = mul(p.param("waveft_spectrum", n), p.frozen("waveft_taps", n, taps));
    auto at = p.index("waveft_indices", n * taps);
    return W + p.scalar("scaling") * scatter_elements(reshape(values, n * taps, 1), at, W.rows(), W.cols());
  }
};

using waveft_forms = adapter_list<waveft<>>;

}  // namespace graft
