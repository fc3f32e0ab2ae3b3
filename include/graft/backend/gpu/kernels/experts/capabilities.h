// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of mixtures of experts. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/kernel_selection.h>

namespace graft::gpu {

constexpr expert_gemm::capabilities expert_gemm_capabilities() { return {.adds_branch = true}; }

template <> struct kernels_of_launch<expert_gemm> {
  static constexpr void add(kernel_selection& to, const type_plan&, const expert_gemm&) {
    to.nodes = to.nodes | op_bit(op::grouped_matmul);
  }
};

}  // namespace graft::gpu
