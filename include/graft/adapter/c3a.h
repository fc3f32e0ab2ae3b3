// SPDX-License-Identifier: Apache-2.0
// C3A: circular convolutions on blocks of the input (Chen et al. 2024, arXiv 2407.19342).
//     W'[m b + i, n b + j] = W[m b + i, n b + j] + κ_mn[(j − i) mod b] / in        κ_mn: b numbers for a block of b²
// PEFT's hand-written backward pass takes κ[(j + i) mod b] for the gradient of the input. `as_peft` does the same,
// `exact` is the derivative of the formula.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class c3a_gradient : unsigned char { as_peft, exact };

template <int Block = dyn, c3a_gradient Gradient = c3a_gradient::as_peft> struct c3a {
  static constexpr const char *name = "C3A", *method = "c3a", *kinds = "linear";
  using sample = c3a<32, Gradient>;
  static constexpr ex update(scope p, ex W, bool mirrored) {
    auto b = p.size("block_size", Block, 256);
    auto kernel = p.param("c3a_kernel", W.rows() / b, W.cols() / b, b) / p.number(W.cols());
    return reshape(circulant(kernel, mirrored), W.rows(), W.cols());
  }
  static constexpr ex weight(scope p, ex W) { return W + update(p, W, false); }
  static constexpr ex input_gradient_weight(scope p, ex W) requires(Gradient == c3a_gradient::as_peft) {
    return W + update(p, W, true);
  }
};

using c3a_forms = adapter_list<c3a<>>;

}  // namespace graft
