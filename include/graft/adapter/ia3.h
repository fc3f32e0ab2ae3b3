// SPDX-License-Identifier: Apache-2.0
// IA3: learned rescaling of activations (Liu et al. 2022, arXiv 2205.05638).
//     W' = l ⊙ W (each output), b' = l ⊙ b        attention projections: PEFT scales the bias too
//     W' = W ⊙ l (each input)                     feed-forward projections
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

struct ia3 {
  static constexpr const char *name = "IA3", *method = "ia3", *kinds = "linear";
  using sample = ia3;
  static constexpr ex weight(scope p, ex W) { return p.param("ia3_l", W.rows(), 1) * W; }
  static constexpr ex bias(scope p, ex b) { return mul(p.param("ia3_l", b.rows(), 1), b); }
};

struct ia3_feedforward {
  static constexpr const char *name = "IA3 (feed-forward)", *method = "ia3_feedforward", *kinds = "linear";
  using sample = ia3_feedforward;
  static constexpr ex weight(scope p, ex W) { return mul(W, p.param("ia3_l", 1, W.cols())); }
};

using ia3_forms = adapter_list<ia3, ia3_feedforward>;

}  // namespace graft
