// SPDX-License-Identifier: Apache-2.0
// RandLoRA: an update of full rank from frozen random bases (Albert et al. 2025, arXiv 2502.00987).
//     W' = W + s B̂ Â,   Â[(k, n), i] = λ_kn A_ki γ_ni,   n = 1 … ⌈min(out, in) / r⌉        A, B shared by all layers
// B̂ lists its columns as (n, k) where Â lists its rows as (k, n), because PEFT multiplies them so. The scaled base is
// the one along the shorter axis of W: on a wide layer (out < in) the update is Âᵀ B̂ᵀ.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class randlora_shape : unsigned char { tall, wide };

template <int Rank = dyn, randlora_shape Shape = randlora_shape::tall> struct randlora {
  static constexpr bool is_wide = Shape == randlora_shape::wide;
  static constexpr const char *name = is_wide ? "RandLoRA (wide)" : "RandLoRA",
                              *method = is_wide ? "randlora_wide" : "randlora", *kinds = "linear";
  using sample = randlora<16, Shape>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), n = p.size("num_bases", dyn, 256);
    auto shorter = is_wide ? W.rows() : W.cols(), longer = is_wide ? W.cols() : W.rows();
    auto A = p.frozen("randlora_A", r, 1, shorter), B = reshape(p.frozen("randlora_B", longer, n, r), longer, n * r);
    auto lambda = reshape(p.param("randlora_lambda", r, n), 1, r, n, 1), gamma = p.param("randlora_gamma", n, shorter);
    auto scaled = reshape(mul(lambda, mul(A, gamma)), n * r, shorter);
    return W + p.scalar("scaling") * (is_wide ? t(scaled) * t(B) : B * scaled);
  }
  static constexpr long long size(const char* what, long long out, long long in) {
    if (!same_text(what, "num_bases") || Rank < 1) return unknown;
    return ((is_wide ? out : in) + Rank - 1) / Rank;
  }
};

using randlora_forms = adapter_list<randlora<>, randlora<dyn, randlora_shape::wide>>;

}  // namespace graft
