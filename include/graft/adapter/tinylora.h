// SPDX-License-Identifier: Apache-2.0
// TinyLoRA: the update is a sum of random matrices between the largest singular vectors of the weight; the coefficients
// of the sum are trained, and layers may share them (arXiv 2602.04118).
//     W' = W + B (Σ v_i P_i) A        B = U √S, A = √S Vᵀ: the r largest singular pairs of W, frozen
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn, int Length = dyn> struct tinylora {
  static constexpr const char *name = "TinyLoRA", *method = "tinylora", *kinds = "linear embedding";
  using sample = tinylora<2, 64>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), u = p.size("u", Length, 64);
    auto A = p.frozen("tinylora_A", r, W.cols()), B = p.frozen("tinylora_B", W.rows(), r);
    auto P = reshape(p.frozen("tinylora_P", u, r, r), u, r * r);
    return W + B * (reshape(t(p.param("tinylora_v", u)) * P, r, r) * A);
  }
};

using tinylora_forms = adapter_list<tinylora<>>;

}  // namespace graft
