// SPDX-License-Identifier: Apache-2.0
// C3A: circular convolutions on blocks of the input (Chen et al. 2024, arXiv 2407.19342).
//     W'[m b + i, n b + j] = W[m b + i, n b + j] + κ_mn[(j − i) mod b] / in        κ_mn: b numbers for a block of b²
// A row of a circulant is the row before it moved by one: κ repeated and cut into rows of 2 b − 1 numbers is that.
// PEFT's hand-written backward pass takes κ[(j + i) mod b] for the gradient of the input. `as_peft` does the same, `exact`
// is the derivative of the formula.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class c3a_gradient : unsigned char { as_peft, exact };

template <int Block = dyn, c3a_gradient Gradient = c3a_gradient::as_peft> struct c3a {
  static constexpr const char *name = "C3A", *method = "c3a", *kinds = "linear";
  using sample = c3a<32, Gradient>;
  // b rows of b numbers for each kernel, each moved by one against the row before: by −1 or +1.
  static constexpr ex update(scope p, ex W, int moved) {
    auto b = p.size("block_size", Block, 256), m = W.rows() / b, n = W.cols() / b, row = moved < 0 ? b + b - 1 : b + 1;
    auto kernel = p.param("c3a_kernel", m, n, b) / p.number(W.cols());
    auto circulant = slice(reshape(repeat(kernel, b * row), m, n, b, row), 3, 0, b);
    return reshape(permute(circulant, 0, 2, 1, 3), W.rows(), W.cols());
  }
  static constexpr ex weight(scope p, ex W) { return W + update(p, W, -1); }
  static constexpr ex weight_seen_backward(scope p, ex W) requires(Gradient == c3a_gradient::as_peft) {
    return W + update(p, W, 1);
  }
};

using c3a_forms = adapter_list<c3a<>>;

}  // namespace graft
