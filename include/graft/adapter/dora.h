// SPDX-License-Identifier: Apache-2.0
// DoRA: a low-rank update with a separate magnitude per output (Liu et al. 2024, arXiv 2402.09353).
//     V  = W + s B A
//     W' = m / ||V||_row V        the norm is a constant in the backward pass, as in PEFT; the bias stays outside
// After another adapter, m / ||V|| is still that of the base weight, as PEFT computes it.
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
  static constexpr ex weight_with_base(scope p, ex W, ex base) {
    auto m = p.param("lora_magnitude_vector", W.rows());
    return (m / detach(row_norm(lora<Rank>::weight(p, base)))) * lora<Rank>::weight(p, W);
  }
};

// On an embedding the norm runs over the vocabulary, one magnitude per dimension.
template <int Rank = dyn> struct dora_embedding {
  static constexpr const char *name = "DoRA", *method = "dora_embedding", *kinds = "embedding";
  using sample = dora_embedding<16>;
  static constexpr ex weight(scope p, ex W) { return weight_with_base(p, W, W); }
  static constexpr ex weight_with_base(scope p, ex W, ex base) {
    auto m = t(p.param("lora_magnitude_vector", W.cols()));
    return mul(lora_embedding<Rank>::weight(p, W), m / detach(col_norm(lora_embedding<Rank>::weight(p, base))));
  }
};

using dora_forms = adapter_list<dora<>, dora_embedding<>>;

}  // namespace graft
