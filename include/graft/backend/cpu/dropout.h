// SPDX-License-Identifier: Apache-2.0
// Dropout by counter: whether an element is kept follows from a seed and the number of the element. Any piece of a tensor
// can be computed at any time, forward or backward.
#pragma once
#include <graft/backend/cpu/tensor.h>
#include <graft/core/mixed_bits.h>

namespace graft::cpu {

// Elements `first` and following of a tensor.
template <class Real>
void dropout(tensor<Real> out, tensor<Real> x, std::int64_t seed, long long salt, Real rate, long long first) {
  const std::uint64_t key = mixed_bits(static_cast<std::uint64_t>(seed) ^ mixed_bits(static_cast<std::uint64_t>(salt)));
  const auto dropped = static_cast<std::uint64_t>(static_cast<double>(rate) * 9007199254740992.0);  // of 2^53
  const Real scale = rate < Real(1) ? Real(1) / (Real(1) - rate) : Real(0);
  for (long long i = 0; i < out.count(); ++i) {
    const std::uint64_t drawn = mixed_bits(key ^ static_cast<std::uint64_t>(first + i)) >> 11U;
    out.p[i] = drawn < dropped ? Real(0) : scale * x.p[i];
  }
}

}  // namespace graft::cpu
