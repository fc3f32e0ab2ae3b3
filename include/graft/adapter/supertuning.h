// SPDX-License-Identifier: Apache-2.0
// Super-Tuning: the largest (or the smallest) entries of the weight are trained, alone or together with a LoRA
// (arXiv 2607.09287).
//     W' = W + scatter_elements(v, index)        or  W' = W + scatter_elements(v, index) + s B A
#pragma once
#include <graft/adapter/shira.h>

namespace graft {

template <int Entries = dyn> struct supertuning {
  static constexpr const char *name = "Super-Tuning", *method = "supertuning", *kinds = "linear";
  using sample = supertuning<4096>;
  static constexpr ex weight(scope p, ex W) {
    return with_entries<Entries>(p, W, "supertuning_values", "supertuning_indices");
  }
};

template <int Entries = dyn, int Rank = dyn> struct supertuning_with_lora {
  static constexpr const char *name = "Super-Tuning with LoRA", *method = "supertuning_with_lora", *kinds = "linear";
  using sample = supertuning_with_lora<4096, 16>;
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("supertuning_lora_A.weight", r, W.cols()), B = p.param("supertuning_lora_B.weight", W.rows(), r);
    return {supertuning<Entries>::weight(p, W), p.scalar("scaling") * (B * A)};
  }
  static constexpr ex weight(scope p, ex W) {
    const dropout_weight_parts both = dropout_parts(p, W);
    return both.whole + both.dropped;
  }
};

using supertuning_forms = adapter_list<supertuning<>, supertuning_with_lora<>>;

}  // namespace graft
