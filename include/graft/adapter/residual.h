// SPDX-License-Identifier: Apache-2.0
// PiSSA and OLoRA: LoRA and DoRA on the residual that is left when the initial factors are subtracted from the base
// weight (PiSSA: Meng et al. 2024, arXiv 2404.02948; OLoRA: Büyükakyüz 2024, arXiv 2406.01775).
//     W' = W − s B₀ A₀ + s B A        A₀, B₀: the initial factors, which follow from W, frozen
//     PiSSA   B₀ = U √(S / s),  A₀ = √(S / s) Vᵀ        of the r largest singular pairs
//     OLoRA   B₀ = Q,  A₀ = R                           the first r columns and rows of W = Q R
// PEFT writes W − s B₀ A₀ into the base layer; here the base is unchanged, and a disabled adapter gives the base layer.
#pragma once
#include <graft/adapter/dora.h>

namespace graft {

template <int Rank = dyn> struct residual_lora {
  static constexpr const char *name = "LoRA on a residual", *method = "residual_lora", *kinds = "linear";
  using sample = residual_lora<16>;
  static constexpr ex residual(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.frozen("initial_A", r, W.cols()), B = p.frozen("initial_B", W.rows(), r);
    return W - p.scalar("scaling") * (B * A);
  }
  static constexpr ex weight(scope p, ex W) { return lora<Rank>::weight(p, residual(p, W)); }
  // The residual, which is PEFT's base layer, multiplies x without dropout.
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
    return {residual(p, W), p.scalar("scaling") * (B * A)};
  }
};

template <int Rank = dyn> struct residual_dora {
  static constexpr const char *name = "DoRA on a residual", *method = "residual_dora", *kinds = "linear";
  using sample = residual_dora<16>;
  static constexpr ex weight(scope p, ex W) { return dora<Rank>::weight(p, residual_lora<Rank>::residual(p, W)); }
  static constexpr ex weight_with_base(scope p, ex W, ex base) {
    return dora<Rank>::weight_with_base(p, residual_lora<Rank>::residual(p, W), residual_lora<Rank>::residual(p, base));
  }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto R = residual_lora<Rank>::residual(p, W);
    return {R, dora<Rank>::weight(p, R) - R};
  }
};

using residual_forms = adapter_list<residual_lora<>, residual_dora<>>;

}  // namespace graft
