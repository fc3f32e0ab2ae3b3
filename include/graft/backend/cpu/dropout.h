// SPDX-License-Identifier: Apache-2.0
// Dropout by counter: whether an element is kept follows from a seed and the number of the element.
#pragma once
#include <graft/backend/cpu/tensor.h>
#include <graft/backend/element_drops.h>

namespace graft::cpu {

// Elements `first` and following of a tensor.
template <class Real>
void dropout(tensor<Real> out, tensor<Real> x, std::int64_t seed, long long salt, Real rate, long long first) {
  const auto drawn = element_drops::of(seed, salt, static_cast<double>(rate));
  const Real scale = element_drops::scale(rate);
  for (long long i = 0; i < out.count(); ++i) out.p[i] = drawn.drops(first + i) ? Real(0) : scale * x.p[i];
}

}  // namespace graft::cpu
