// SPDX-License-Identifier: Apache-2.0
// MiSS: a shard D of r columns repeated along the input (Kang & Yin 2024, arXiv 2409.15371).
//     W'[o, i] = W[o, i] + D[i mod r, o]              on activations: fold x into r sums, times D
//     mini: D [r, mini_r] is itself repeated along the output
//     bat:  W'_ij = W_ij (I + B_i) + B_i on r x r blocks
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct miss {
  static constexpr const char *name = "MiSS", *method = "miss", *kinds = "linear";
  using sample = miss<16>;
  static constexpr ex weight(scope p, ex W) {
    auto D = p.param("miss_block", p.size("r", Rank), W.rows());
    return W + repeat(t(D), W.cols());
  }
};

template <int Rank = dyn, int MiniRank = dyn> struct miss_mini {
  static constexpr const char *name = "MiSS (mini)", *method = "miss_mini", *kinds = "linear";
  using sample = miss_mini<16, 16>;
  static constexpr ex weight(scope p, ex W) {
    auto D = p.param("miss_block", p.size("r", Rank), p.size("mini_r", MiniRank));
    return W + repeat(t(repeat(D, W.rows())), W.cols());
  }
};

template <int Rank = dyn> struct miss_bat {
  static constexpr const char *name = "MiSS (bat)", *method = "miss_bat", *kinds = "linear";
  using sample = miss_bat<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), row_blocks = W.rows() / r, col_blocks = W.cols() / r;
    auto B = p.param("miss_block", row_blocks, r, r);
    auto blocks = reshape(W, row_blocks, r * col_blocks, r);
    auto scaled = reshape(blocks * (p.eye(r) + B), row_blocks, r, W.cols());
    return reshape(scaled + repeat(B, W.cols()), W.rows(), W.cols());
  }
};

using miss_forms = adapter_list<miss<>, miss_mini<>, miss_bat<>>;

}  // namespace graft
