// SPDX-License-Identifier: Apache-2.0
// LN tuning: a norm layer with weight and bias of its own (Qi et al. 2022, arXiv 2211.08682).
//     w' = weight, b' = bias          full copies; merging swaps them in
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

struct ln_tuning {
  static constexpr const char *name = "LN tuning", *method = "ln_tuning", *kinds = "layer_norm rms_norm";
  using sample = ln_tuning;
  static constexpr with_bias only = with_bias::always;
  static constexpr ex weight(scope p, ex w) { return p.param("ln_tuning_layers.weight", w.rows()); }
  static constexpr ex bias(scope p, ex b) { return p.param("ln_tuning_layers.bias", b.rows()); }
};
// A norm without a bias (RMSNorm) has one tensor only.
struct ln_tuning_weight {
  static constexpr const char *name = "LN tuning (weight)", *method = "ln_tuning_weight",
                              *kinds = "layer_norm rms_norm";
  using sample = ln_tuning_weight;
  static constexpr with_bias only = with_bias::never;
  static constexpr ex weight(scope p, ex w) { return ln_tuning::weight(p, w); }
};

using ln_tuning_forms = adapter_list<ln_tuning, ln_tuning_weight>;

}  // namespace graft
