// SPDX-License-Identifier: Apache-2.0
// A chunk of a parameter with its gradient and optimizer state, and AdamW for one of its elements (Loshchilov, Hutter,
// arXiv:1711.05101, as in torch/optim/adamw.py). Every backend runs this arithmetic.
#pragma once

namespace graft {

// `mean` and `square` are the first and second moment; `decays` says whether weight decay applies.
struct optimizer_chunk {
  float *value, *gradient, *mean, *square;
  long long count;
  bool decays;
};
inline constexpr long long optimizer_chunk_size = 1 << 14;  // elements

// Adds one gradient of a parameter that is used several times: to += from.
struct gradient_addend {
  float* to;
  const void* from;  // in the compute type of the engine
  long long count;
};

struct adamw_step {
  float decay_factor, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, minus_learning_rate;

  template <class Root> constexpr void update(const optimizer_chunk& p, long long i, Root root) const {
    const float g = p.gradient[i];
    const float m = p.mean[i] + one_minus_beta1 * (g - p.mean[i]);
    const float v = p.square[i] * beta2 + one_minus_beta2 * g * g;
    p.mean[i] = m, p.square[i] = v;
    p.value[i] =
        p.value[i] * (p.decays ? decay_factor : 1.0F) + minus_learning_rate * (m / (root(v) / root_correction + eps));
  }
};

}  // namespace graft
