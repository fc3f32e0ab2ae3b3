// SPDX-License-Identifier: Apache-2.0
// BOFT: a rotation made of m butterfly factors, and a scale per output (Liu et al. 2023, arXiv 2311.06243).
//     y = s ⊙ ((x R) Wᵀ) + b,   W' = s ⊙ (W Rᵀ),   R = B_{m-1} … B_0
//     B_i block-diagonal in butterfly order, blocks (I - S)(I + S)⁻¹ with S = (R - Rᵀ) / 2
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Block = 4, int Factors = 1> struct boft {
  static constexpr const char *name = "BOFT", *method = "boft", *kinds = "linear";
  using sample = boft<4, 2>;
  static constexpr ex weight(scope p, ex W) {
    auto b = p.size("b", Block, 8), m = p.size("m", Factors, 2);
    auto R = p.param("boft_R", m, W.cols() / b, b, b);
    auto S = 0.5 * (R - t(R)), I = p.eye(b);
    return p.param("boft_s", W.rows(), 1) * unrotate(W, orthogonal((I - S) * inverse(I + S)));
  }
};

using boft_forms = adapter_list<boft<dyn, dyn>>;

}  // namespace graft
