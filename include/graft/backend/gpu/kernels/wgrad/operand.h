// SPDX-License-Identifier: Apache-2.0
// Operands of a wgrad, D = factor · Zᵀ Q over the tokens, for a launch of its own (sm90.cuh) or fused into a dgrad
// launch (kernels/gemm/sm90_fused_wgrad.cuh).
#pragma once
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/plan/target.h>

#include <cstdint>

namespace graft::gpu {

// A matrix [tokens, columns] with rows of `pitch` elements.
struct wgrad_operand {
  const void* data = nullptr;
  int columns = 0, pitch = 0;
  dtype type = dtype::bf16;
  bool aligned() const { return pitch % 8 == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
  element_ptr<float> elements() const { return {const_cast<void*>(data), type}; }
  friend bool operator==(const wgrad_operand&, const wgrad_operand&) = default;
};

// A wgrad that may be fused into a dgrad launch. Z is the wider operand.
struct fused_wgrad {
  wgrad_operand z, q;
  bool waits_for_shrink = false;  // Q is the shrink result U = x Aᵀ of the same launch
  bool by_column = false, adds = false;
  bool columnwise = false;            // d = Σ Z ⊙ Q instead of Zᵀ Q
  element_ptr<float> factor{}, to{};  // to.at is null where there is no wgrad

  bool addressed(dtype type) const {
    return to.at != nullptr && z.columns > 0 && q.columns > 0 && z.type == type && q.type == type && z.aligned() &&
           q.aligned();
  }
  fused_wgrad_shape shape(int padded_rank) const { return {z.columns, columnwise ? 0 : padded_rank, waits_for_shrink}; }
  friend bool operator==(const fused_wgrad& a, const fused_wgrad& b) {
    return a.z == b.z && a.q == b.q && a.to.at == b.to.at && a.to.type == b.to.type && a.factor.at == b.factor.at &&
           a.adds == b.adds;
  }
};

}  // namespace graft::gpu
