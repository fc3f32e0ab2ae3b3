// SPDX-License-Identifier: Apache-2.0
// VB-LoRA: LoRA factors composed of vectors from one shared bank (Li et al. 2024, arXiv 2405.15179).
//     W' = W + B A,   A[i, t L + l] = Σ_k softmax_topk(logits_A[i, t])_k bank[k, l],   B likewise along its rows
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn, int TopK = 2> struct vblora {
  static constexpr const char *name = "VB-LoRA", *method = "vblora", *kinds = "linear";
  using sample = vblora<4, 2>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), n = p.size("num_vectors", dyn, 256), L = p.size("vector_length", dyn, 256);
    auto k = p.size("topk", TopK, 2), in_parts = W.cols() / L, out_parts = W.rows() / L;
    auto bank = p.param("vblora_vector_bank", n, L);
    auto to_A = reshape(p.param("vblora_logits_A", r, in_parts, n), r * in_parts, n);
    auto to_B = reshape(p.param("vblora_logits_B", out_parts, r, n), out_parts * r, n);
    auto A = reshape(topk_softmax(to_A, k) * bank, r, W.cols());
    auto B = reshape(t(reshape(topk_softmax(to_B, k) * bank, out_parts, r, L)), W.rows(), r);
    return W + B * A;
  }
};

using vblora_forms = adapter_list<vblora<dyn, dyn>>;

}  // namespace graft
