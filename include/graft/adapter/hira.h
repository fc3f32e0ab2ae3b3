// SPDX-License-Identifier: Apache-2.0
// HiRA: the base weight times a low-rank matrix, element by element (Huang et al. 2025, openreview TwJrTz9cRS).
//     W' = W ⊙ (1 + B A)
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct hira {
  static constexpr const char *name = "HiRA", *method = "hira", *kinds = "linear conv2d";
  using sample = hira<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("hira_A", r, W.cols()), B = p.param("hira_B", W.rows(), r);
    return mul(W, 1.0 + B * A);
  }
};

// On an embedding the table is [vocabulary, dimension] and the factors are stored transposed.
template <int Rank = dyn> struct hira_embedding {
  static constexpr const char *name = "HiRA", *method = "hira_embedding", *kinds = "embedding";
  using sample = hira_embedding<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("hira_embedding_A", r, W.rows()), B = p.param("hira_embedding_B", W.cols(), r);
    return mul(W, 1.0 + t(A) * t(B));
  }
};

using hira_forms = adapter_list<hira<>, hira_embedding<>>;

}  // namespace graft
