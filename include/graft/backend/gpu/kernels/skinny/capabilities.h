// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of narrow GEMMs with dropout. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/kernel_selection.h>

namespace graft::gpu {

constexpr dropout_gemm::capabilities dropout_gemm_capabilities() { return {.has_kernel = true}; }

template <> struct kernels_of_launch<dropout_gemm> {
  static constexpr void add(kernel_selection& to, const type_plan&, const dropout_gemm&) {
    to.launches |= launches::dropout_gemms;
  }
};

}  // namespace graft::gpu
