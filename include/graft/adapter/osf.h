// SPDX-License-Identifier: Apache-2.0
// OSF: the largest singular pairs of the weight are frozen, and the others are trained (Nayak et al. 2025,
// arXiv 2504.07097).
//     W' = U₁ S₁ V₁ᵀ + U S Vᵀ        U₁, S₁, V₁: of the base weight, frozen
// The gradients of U and V are orthogonal to U₁ and V₁: components in those directions are constants in backward.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Frozen = dyn, int Trained = dyn> struct osf {
  static constexpr const char *name = "OSF", *method = "osf", *kinds = "linear";
  using sample = osf<64, 64>;
  static constexpr ex without_gradient_of(ex whole, ex part) { return whole + (detach(part) - part); }
  static constexpr ex weight(scope p, ex W) {
    auto k = p.size("frozen_rank", Frozen, 2048), n = p.size("trainable_rank", Trained, 2048);
    auto U_high = p.frozen("osf_U_high", W.rows(), k), V_high = p.frozen("osf_V_high", k, W.cols());
    auto U = p.param("osf_svd_params.U_low", W.rows(), n), V = p.param("osf_svd_params.V_low", n, W.cols());
    auto left = without_gradient_of(U, U_high * (t(U_high) * U));
    auto right = without_gradient_of(V, (V * t(V_high)) * V_high);
    return mul(U_high, t(p.frozen("osf_S_high", k))) * V_high +
           mul(left, t(p.param("osf_svd_params.S_low", n))) * right;
  }
};

using osf_forms = adapter_list<osf<>>;

}  // namespace graft
