// SPDX-License-Identifier: Apache-2.0
// VeRA: shared frozen random projections, two trained vectors per layer (Kopiczko et al. 2023, arXiv 2310.11454).
//     W' = W + (λ_b ⊙ B) (λ_d ⊙ A)        A, B are slices of the model's shared pair; no scaling
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct vera {
  static constexpr const char *name = "VeRA", *method = "vera", *kinds = "linear";
  using sample = vera<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.frozen("vera_A", r, W.cols()), B = p.frozen("vera_B", W.rows(), r);
    return W + (p.param("vera_lambda_b", W.rows()) * B) * (p.param("vera_lambda_d", r) * A);
  }
};

using vera_forms = adapter_list<vera<>>;

}  // namespace graft
