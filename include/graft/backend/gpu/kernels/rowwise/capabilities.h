// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of norms and concatenated heads. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/kernel_selection.h>

namespace graft::gpu {

constexpr rowwise_launch::capabilities rowwise_capabilities() { return {.fused = true}; }

template <> struct kernels_of_launch<rowwise_launch> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const rowwise_launch& r) {
    to.nodes = to.nodes | op_bit(in.g[r.anchor()].what);
  }
};

}  // namespace graft::gpu
