// SPDX-License-Identifier: Apache-2.0
// DoRA: a low-rank update with a separate magnitude per output (Liu et al. 2024, arXiv 2402.09353).
//     V  = W + s B A
//     W' = m / ||V||_row V        the norm is a constant in the backward pass, as in PEFT; the bias stays outside
#pragma once
#include <graft/adapter/lora.h>

namespace graft {

template <int Rank = dyn> struct dora {
  static constexpr const char *name = "DoRA", *method = "dora", *kinds = "linear conv2d";
  using sample = dora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto m = p.param("lora_magnitude_vector", W.rows());
    auto V = lora<Rank>::weight(p, W);
    return (m / detach(row_norm(V))) * V;
  }
};

// On an embedding the norm runs over the vocabulary, one magnitude per dimension.
template <int Rank = dyn> struct dora_embedding {
  static constexpr const char *name = "DoRA", *method = "dora_embedding", *kinds = "embedding";
  using sample = dora_embedding<16>;
  static constexpr ex weight(scope p, ex W) {
    auto m = t(p.param("lora_magnitude_vector", W.cols()));
    auto V = lora_embedding<Rank>::weight(p, W);
    return mul(V, m / detach(col_norm(V)));
  }
};

using dora_forms = adapter_list<dora<>, dora_embedding<>>;

}  // namespace graft
