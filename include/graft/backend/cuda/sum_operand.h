// SPDX-License-Identifier: Apache-2.0
// What a sum over the tokens reads and writes, D = factor · Zᵀ Q, wherever it runs: in a launch of its own, or beside a
// product.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/plan/target.h>

#include <cstdint>

namespace graft::cuda {

// Rows of `pitch` elements, of which the first `columns` count.
struct sum_operand {
  const void* data = nullptr;
  int columns = 0, pitch = 0;
  dtype type = dtype::bf16;
  bool aligned() const { return pitch % 8 == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
  cells<float> elements() const { return {const_cast<void*>(data), type}; }
  friend bool operator==(const sum_operand&, const sum_operand&) = default;
};

// One that may run beside a product: Z is the wider operand.
struct beside_sum {
  sum_operand z, q;
  bool waits = false;  // Q is S of the product
  bool by_column = false, adds = false;
  bool dots = false;            // Σ Z ⊙ Q instead
  cells<float> factor{}, to{};  // to nowhere: there is none

  bool addressed(dtype type) const {
    return to.at != nullptr && z.columns > 0 && q.columns > 0 && z.type == type && q.type == type && z.aligned() &&
           q.aligned();
  }
  beside_shape shape(int padded_rank) const { return {z.columns, dots ? 0 : padded_rank, waits}; }
  friend bool operator==(const beside_sum& a, const beside_sum& b) {
    return a.z == b.z && a.q == b.q && a.to.at == b.to.at && a.to.type == b.to.type && a.factor.at == b.factor.at &&
           a.adds == b.adds;
  }
};

}  // namespace graft::cuda
