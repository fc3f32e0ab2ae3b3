// SPDX-License-Identifier: Apache-2.0
// DeLoRA: a low-rank update whose strength is one number, apart from its direction (Bini et al. 2025, arXiv
// 2503.18225).
//     W' = W + (B D A) ⊙ w,   D_i = λ / (r ‖A_i‖ ‖B_i‖)        w_j = ‖W_j‖, a norm per input of the base, from the file
// Norms below 1e-4 count as 1e-4, as in PEFT.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct delora {
  static constexpr const char *name = "DeLoRA", *method = "delora", *kinds = "linear";
  using sample = delora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("delora_A", r, W.cols()), B = p.param("delora_B", W.rows(), r);
    auto least = p.constant(1e-4), lambda = p.param("delora_lambda", 1);
    auto D = lambda / p.number(r) / mul(max(row_norm(A), least), max(row_norm(t(B)), least));
    return W + mul(B * (D * A), t(p.frozen("delora_w_norm", W.cols())));
  }
};

using delora_forms = adapter_list<delora<>>;

}  // namespace graft
