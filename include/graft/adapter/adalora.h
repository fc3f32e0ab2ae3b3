// SPDX-License-Identifier: Apache-2.0
// AdaLoRA: LoRA in the form of a singular value decomposition (Zhang et al. 2023, arXiv 2303.10512).
//     W' = W + s B (E ⊙ A)       s = alpha / (init_r + 1e-5), whatever rank is left after pruning, as in PEFT
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct adalora {
  static constexpr const char *name = "AdaLoRA", *method = "adalora", *kinds = "linear";
  using sample = adalora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_A", r, W.cols()), B = p.param("lora_B", W.rows(), r), E = p.param("lora_E", r, 1);
    return W + p.scalar("scaling") * (B * (E * A));
  }
};

using adalora_forms = adapter_list<adalora<>>;

}  // namespace graft
