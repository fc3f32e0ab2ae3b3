// SPDX-License-Identifier: Apache-2.0
// Uni-LoRA: the factors of all layers are looked up in one trained vector (Li et al. 2025, arXiv 2506.00799).
//     W' = W + B A,   A_ij = θ[a_ij] / √c,   B_ij = θ[b_ij] / √c        c: how often the number is looked up
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn, int Length = dyn> struct unilora {
  static constexpr const char *name = "Uni-LoRA", *method = "unilora", *kinds = "linear";
  using sample = unilora<4, 256>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto theta = p.param("unilora_theta_d", p.size("theta_d_length", Length, 256));
    auto at_A = p.index("unilora_indices_A", r * W.cols()), at_B = p.index("unilora_indices_B", W.rows() * r);
    auto A = mul(reshape(gather_elements(theta, at_A), r, W.cols()), p.frozen("unilora_scales_A", r, W.cols()));
    auto B = mul(reshape(gather_elements(theta, at_B), W.rows(), r), p.frozen("unilora_scales_B", W.rows(), r));
    return W + B * A;
  }
};

using unilora_forms = adapter_list<unilora<>>;

}  // namespace graft
