// SPDX-License-Identifier: Apache-2.0
// Part of a parameter with its gradient and an optimizer's state, and the arithmetic of AdamW on one of its elements
// (Loshchilov, Hutter, arXiv:1711.05101, as in torch/optim/adamw.py): the same on every backend.
#pragma once

namespace graft {

struct update_piece {
  float *value, *gradient, *mean, *square;
  long long count;
  bool decays;
};
inline constexpr long long update_piece_size = 1 << 14;

// to += from, element by element: one of several uses of a parameter.
struct gradient_sum {
  float* to;
  const void* from;  // as the engine computes
  long long count;
};

struct adamw_numbers {
  float kept, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, minus_rate;

  template <class Root> constexpr void update(const update_piece& p, long long i, Root root) const {
    const float g = p.gradient[i];
    const float m = p.mean[i] + one_minus_beta1 * (g - p.mean[i]);
    const float v = p.square[i] * beta2 + one_minus_beta2 * g * g;
    p.mean[i] = m, p.square[i] = v;
    p.value[i] = p.value[i] * (p.decays ? kept : 1.0F) + minus_rate * (m / (root(v) / root_correction + eps));
  }
};

}  // namespace graft
