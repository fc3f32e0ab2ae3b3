// SPDX-License-Identifier: Apache-2.0
// FourierFT: a few coefficients of the spectrum of the update (Gao et al. 2024, arXiv 2405.03003).
//     W' = W + s Re(ifft2(F)),   F zero but for n elements        = W + s P (v ⊙ Q),   P = [cos, sin],  Q = [cos; −sin]
// Column p of the cosines in P is cos(2π k_p i / out), row p of those in Q is cos(2π l_p j / in) / (out in).
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Frequencies = dyn> struct fourierft {
  static constexpr const char *name = "FourierFT", *method = "fourierft", *kinds = "linear";
  using sample = fourierft<256>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("n_frequency", Frequencies, 1000);
    auto v = p.param("fourierft_spectrum", n);
    auto P = p.frozen("fourierft_rows", W.rows(), n + n), Q = p.frozen("fourierft_columns", n + n, W.cols());
    return W + p.scalar("scaling") * (P * mul(concat(v, v, 2), Q));
  }
};

using fourierft_forms = adapter_list<fourierft<>>;

}  // namespace graft
