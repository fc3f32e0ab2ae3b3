// SPDX-License-Identifier: Apache-2.0
// Trainable tokens: some rows of an embedding, and of a head that is tied to it, are parameters (PEFT's
// TrainableTokensConfig). The file holds the trained rows themselves, not their differences.
//     W' = W + S (D - R)          D: trained rows;  R = Sᵀ W, the original rows;  column k of S has its one at token k
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Tokens = dyn> struct trainable_tokens {
  static constexpr const char *name = "Trainable tokens", *method = "trainable_tokens", *kinds = "embedding linear";
  using sample = trainable_tokens<8>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("trained_tokens", Tokens);
    auto S = p.frozen("selected", W.rows(), n), R = p.frozen("trainable_tokens_original", n, W.cols());
    return W + S * (p.param("trainable_tokens_delta", n, W.cols()) - R);
  }
};

using trainable_tokens_forms = adapter_list<trainable_tokens<>>;

}  // namespace graft
