// SPDX-License-Identifier: Apache-2.0
// LoRA: a low-rank update of the weight (Hu et al. 2021, arXiv 2106.09685).
//     W' = W + s B A          s = alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv 2312.03732): a number, not a formula
//     b' = b + s β            only with lora_bias; PEFT scales it too
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct lora {
  static constexpr const char *name = "LoRA", *method = "lora", *kinds = "linear conv2d";
  using sample = lora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
    return W + p.scalar("scaling") * (B * A);
  }
};

template <int Rank = dyn> struct lora_with_bias {
  static constexpr const char *name = "LoRA with bias", *method = "lora_with_bias", *kinds = "linear conv2d";
  using sample = lora_with_bias<16>;
  static constexpr ex weight(scope p, ex W) { return lora<Rank>::weight(p, W); }
  static constexpr ex bias(scope p, ex b) { return b + p.scalar("scaling") * p.param("lora_B.bias", b.rows()); }
};

// On an embedding the table is [vocabulary, dimension] and the factors are stored transposed:  W' = W + s (B A)ᵀ
template <int Rank = dyn> struct lora_embedding {
  static constexpr const char *name = "LoRA", *method = "lora_embedding", *kinds = "embedding";
  using sample = lora_embedding<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_embedding_A", r, W.rows()), B = p.param("lora_embedding_B", W.cols(), r);
    return W + p.scalar("scaling") * (t(A) * t(B));
  }
};

// On the experts of a mixture as PEFT's target_parameters stores it: A [E r, in] is read as [E, r, in], and B
// [out, r E] as [out, r, E], so that expert e has every E-th column from column e on.
template <int Rank = dyn> struct lora_on_experts {
  static constexpr const char *name = "LoRA", *method = "lora_on_experts", *kinds = "experts";
  static constexpr bool reads_all_experts = true;
  using sample = lora_on_experts<16>;
  static constexpr ex weight(scope p, ex W) {
    const extent r = p.size("r", Rank), E{p.g, (*W).d[1]}, out = W.rows(), in = W.cols();
    const ex stored_A = p.shared().param("lora_A.weight", E * r, in),
             stored_B = p.shared().param("lora_B.weight", out, r * E);
    const ex A = reshape(stored_A, E, r, in), B = permute(reshape(stored_B, out, r, E), 0, 3, 1, 2);
    return W + p.scalar("scaling") * (B * A);
  }
};

using lora_forms = adapter_list<lora<>, lora_with_bias<>, lora_embedding<>, lora_on_experts<>>;

}  // namespace graft
