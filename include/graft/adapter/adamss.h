// SPDX-License-Identifier: Apache-2.0
// AdaMSS: the outputs form groups by the singular vectors of the weight, and each group has a low-rank update of its
// own, in the coordinates of the right singular vectors N (Zheng et al. 2025, NeurIPS 2025).
//     W'_k = W_k + B_k A_k N        W_k: rows of group k; B: all B_k at their rows and columns, A: all A_k stacked
// Where the layer has a bias, the decomposition is of [W, b], and the bias is one more column.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Entries = dyn, int Ranks = dyn, int Directions = dyn> struct adamss {
  static constexpr const char *name = "AdaMSS", *method = "adamss", *kinds = "linear";
  static constexpr with_bias only = with_bias::never;
  using sample = adamss<1024, 8, 64>;
  // Builds the update B A N. `right` is N for the weight, and for the bias the column of N that belongs to it.
  static constexpr ex update(scope p, extent out, ex right) {
    auto n = p.size("num_indices", Entries, 4096), k = p.size("subspace_ranks", Ranks, 5);
    auto B = scatter_elements(p.param("adamss_B", n), p.index("adamss_indices", n), out, k);
    return B * (p.param("adamss_A", k, right.rows()) * right);
  }
  static constexpr extent directions(scope p) { return p.size("directions", Directions, 100); }
  static constexpr ex weight(scope p, ex W) {
    return W + update(p, W.rows(), p.frozen("adamss_right", directions(p), W.cols()));
  }
};

template <int Entries = dyn, int Ranks = dyn, int Directions = dyn> struct adamss_with_bias {
  using without = adamss<Entries, Ranks, Directions>;
  static constexpr const char *name = "AdaMSS", *method = "adamss_with_bias", *kinds = "linear";
  static constexpr with_bias only = with_bias::always;
  using sample = adamss_with_bias<1024, 8, 64>;
  static constexpr ex weight(scope p, ex W) { return without::weight(p, W); }
  static constexpr ex bias(scope p, ex b) {
    return b + without::update(p, b.rows(), p.frozen("adamss_right_of_bias", without::directions(p)));
  }
};

using adamss_forms = adapter_list<adamss<>, adamss_with_bias<>>;

}  // namespace graft
