// SPDX-License-Identifier: Apache-2.0
// FRoD: the weight in a basis that layers of one kind share, with a trained diagonal and some trained sparse entries
// (doi 10.1609/aaai.v40i31.39813).
//     W' = U (diag λ + scatter_elements(v, index)) Vᵀ        U = W V⁻ᵀ with columns of length 1
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

struct frod_diagonal {
  static constexpr const char *name = "FRoD, diagonal", *method = "frod_diagonal", *kinds = "linear";
  using sample = frod_diagonal;
  static constexpr ex scaled(scope p, ex W) {
    return mul(p.frozen("frod_U", W.rows(), W.cols()), t(p.param("frod_lambda_l", W.cols())));
  }
  static constexpr ex basis(scope p, ex W) { return p.frozen("frod_V", W.cols(), W.cols()); }
  static constexpr ex weight(scope p, ex W) { return scaled(p, W) * t(basis(p, W)); }
};

template <int Entries = dyn> struct frod {
  static constexpr const char *name = "FRoD", *method = "frod", *kinds = "linear";
  using sample = frod<4096>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("num_indices", Entries, 4096);
    auto U = p.frozen("frod_U", W.rows(), W.cols());
    auto S = scatter_elements(p.param("frod_lambda_s_values", n), p.index("frod_s_indices", n), W.cols(), W.cols());
    return (frod_diagonal::scaled(p, W) + U * S) * t(frod_diagonal::basis(p, W));
  }
};

using frod_forms = adapter_list<frod<>, frod_diagonal>;

}  // namespace graft
