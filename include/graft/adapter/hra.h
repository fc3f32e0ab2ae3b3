// SPDX-License-Identifier: Apache-2.0
// HRA: a chain of r Householder reflections (Yuan et al. 2024, arXiv 2405.17484).
//     W' = W H,  H = H_0 … H_{r-1},  H_i = I - 2 û_i û_iᵀ
// Compact WY form (Schreiber & Van Loan 1989):  H = I - Û T Ûᵀ,  T⁻¹ = I / 2 + strictly upper part of ÛᵀÛ.
// With Gram–Schmidt the û_i are orthonormal and H = I - 2 U (UᵀU)⁻¹ Uᵀ: the projection needs no orthonormal basis.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct hra {
  static constexpr const char *name = "HRA", *method = "hra", *kinds = "linear";
  using sample = hra<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto u = p.param("hra_u", W.cols(), r), U = u / col_norm(u);
    auto T = inverse(0.5 * p.eye(r) + strict_upper(t(U) * U));
    return W * orthogonal(p.eye(W.cols()) - U * T * t(U));
  }
};

template <int Rank = dyn> struct hra_gram_schmidt {
  static constexpr const char *name = "HRA (Gram-Schmidt)", *method = "hra_gram_schmidt", *kinds = "linear";
  using sample = hra_gram_schmidt<16>;
  static constexpr ex weight(scope p, ex W) {
    auto u = p.param("hra_u", W.cols(), p.size("r", Rank));
    return W * orthogonal(p.eye(W.cols()) - u * (2.0 * inverse(t(u) * u)) * t(u));
  }
};

using hra_forms = adapter_list<hra<>, hra_gram_schmidt<>>;

}  // namespace graft
