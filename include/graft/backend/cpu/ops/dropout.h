// SPDX-License-Identifier: Apache-2.0
// Dropout by a counter-based generator: whether an element is dropped follows from a seed and the element's number.
#pragma once
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/backend/dropout_mask.h>

namespace graft::cpu {

// Applies dropout to the elements of a tensor from number `first` on.
template <class Real>
void dropout(tensor<Real> out, tensor<Real> x, std::int64_t seed, long long salt, Real rate, long long first) {
  const auto drawn = dropout_mask::of(seed, salt, static_cast<double>(rate));
  const Real scale = dropout_mask::scale(rate);
  for (long long i = 0; i < out.count(); ++i) out.p[i] = drawn.drops(first + i) ? Real(0) : scale * x.p[i];
}

}  // namespace graft::cpu
