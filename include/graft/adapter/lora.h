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

using lora_forms = adapter_list<lora<>, lora_with_bias<>, lora_embedding<>>;

}  // namespace graft
