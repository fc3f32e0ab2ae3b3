// SPDX-License-Identifier: Apache-2.0
// LoHa: the elementwise product of two low-rank updates (Hyeon-Woo et al. 2021, arXiv 2108.06098).
//     W' = W + s (A1 B1) ⊙ (A2 B2)
// The update has rank r² as a product of Khatri–Rao factors. derive/apply.h finds that form, so it is never built.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct loha {
  static constexpr const char *name = "LoHa", *method = "loha", *kinds = "linear conv2d";
  using sample = loha<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A1 = p.param("hada_w1_a", W.rows(), r), B1 = p.param("hada_w1_b", r, W.cols());
    auto A2 = p.param("hada_w2_a", W.rows(), r), B2 = p.param("hada_w2_b", r, W.cols());
    return W + p.scalar("scaling") * mul(A1 * B1, A2 * B2);
  }
};

// The "effective" form for convolutions has a core T [r, r, kh, kw] between two factors that are stored transposed.
//     X_i[o, (q, kl)] = Σ_ab T_i[a, b, kl] A_i[a, o] B_i[b, q]          W' = W + s X1 ⊙ X2
// PEFT's hand-written backward takes the other factor's core for the gradient of A1 and A2. `as_peft` does the same, by
// a term whose value is zero; `exact` is the derivative of the formula.
enum class loha_gradient : unsigned char { as_peft, exact };

template <int Rank = dyn, loha_gradient Gradient = loha_gradient::as_peft> struct loha_conv {
  static constexpr const char *name = "LoHa (effective)", *method = "loha_conv", *kinds = "conv2d";
  using sample = loha_conv<16, Gradient>;
  static constexpr ex right(scope p, ex W, const char* core, const char* b) {
    auto r = p.size("r", Rank), kh = p.size("kernel_h"), kw = p.size("kernel_w");
    auto T = reshape(p.param(core, r, r, kh, kw), r, r, kh * kw);
    return reshape(t(p.param(b, r, W.cols() / (kh * kw))) * T, r, W.cols());
  }
  static constexpr ex factor(ex A, ex own, ex other) {
    auto exact = t(A) * own;
    if (Gradient == loha_gradient::exact) return exact;
    return exact + (t(A) - detach(t(A))) * (other - own);
  }
  static constexpr ex weight(scope p, ex W) {
    auto A1 = p.param("hada_w1_a", p.size("r", Rank), W.rows()), A2 = p.param("hada_w2_a", p.size("r", Rank), W.rows());
    auto R1 = right(p, W, "hada_t1", "hada_w1_b"), R2 = right(p, W, "hada_t2", "hada_w2_b");
    return W + p.scalar("scaling") * mul(factor(A1, R1, R2), factor(A2, R2, R1));
  }
};

using loha_forms = adapter_list<loha<>, loha_conv<>>;

}  // namespace graft
