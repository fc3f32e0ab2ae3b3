// SPDX-License-Identifier: Apache-2.0
// PVeRA: VeRA whose low-rank activations have a distribution, of which the formula computes the mean (arXiv
// 2512.07703).
//     W' = W + (λ_b ⊙ B) (λ_μ ⊙ A_μ)        A = [A_μ; A_σ], λ_d = [λ_μ; λ_σ]; A and B are slices of a shared pair
// PEFT adds noise of variance exp(λ_σ ⊙ A_σ x) in training, which is no formula on a weight: here the mean is trained.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct pvera {
  static constexpr const char *name = "PVeRA", *method = "pvera", *kinds = "linear";
  using sample = pvera<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), both = r * extent(2);
    auto A = slice(p.frozen("pvera_A", both, W.cols()), 2, 0, r), B = p.frozen("pvera_B", W.rows(), r);
    auto mean = slice(p.param("pvera_lambda_d", both), 2, 0, r);
    return W + (p.param("pvera_lambda_b", W.rows()) * B) * (mean * A);
  }
};

using pvera_forms = adapter_list<pvera<>>;

}  // namespace graft
