// SPDX-License-Identifier: Apache-2.0
// GraLoRA: k × k blocks, each with a low-rank update of its own (Jung et al. 2025, arXiv 2505.20355).
//     ΔW_jn = s B_jn A_jn,  rank r / k        A_n holds the factors of column n of blocks, B_j those of row j
// As one update of rank k r it is B̂ Â with block-diagonal factors, whose rows are permuted between the two. A hybrid
// layer adds a plain LoRA of rank hybrid_r with the same scaling.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn, int Blocks = dyn> struct gralora {
  static constexpr const char *name = "GraLoRA", *method = "gralora", *kinds = "linear";
  using sample = gralora<16, 2>;
  // Makes a block-diagonal matrix [k b, k a] of k matrices [a, b], each transposed.
  static constexpr ex diagonal(scope p, ex stack, extent k, extent a, extent b) {
    auto blocks = mul(reshape(p.eye(k), k, 1, k, 1), permute(stack, 0, 3, 1, 2));
    return reshape(blocks, k * b, k * a);
  }
  static constexpr ex down(scope p, ex W) {
    auto r = p.size("r", Rank), k = p.size("gralora_k", Blocks, 2), in = W.cols() / k;
    auto A = diagonal(p, p.param("gralora_A", k, in, r), k, in, r);
    return reshape(permute(reshape(A, k, k, r / k, k * in), 1, 0, 2, 3), k * r, W.cols());
  }
  static constexpr ex up(scope p, ex W) {
    auto r = p.size("r", Rank), k = p.size("gralora_k", Blocks, 2), out = W.rows() / k;
    return reshape(diagonal(p, p.param("gralora_B", k, r, out), k, r, out), W.rows(), k * r);
  }
  static constexpr ex weight(scope p, ex W) { return W + p.scalar("scaling") * (up(p, W) * down(p, W)); }
};

template <int Rank = dyn, int Blocks = dyn, int Hybrid = dyn> struct gralora_hybrid {
  static constexpr const char *name = "GraLoRA (hybrid)", *method = "gralora_hybrid", *kinds = "linear";
  using sample = gralora_hybrid<16, 2, 8>;
  static constexpr ex weight(scope p, ex W) {
    using blocks = gralora<Rank, Blocks>;
    auto h = p.size("hybrid_r", Hybrid, 8);
    auto A = p.param("gralora_A_general.weight", h, W.cols()), B = p.param("gralora_B_general.weight", W.rows(), h);
    return W + p.scalar("scaling") * (concat(blocks::up(p, W), B, 3) * concat(blocks::down(p, W), A, 2));
  }
};

using gralora_forms = adapter_list<gralora<>, gralora_hybrid<>>;

}  // namespace graft
