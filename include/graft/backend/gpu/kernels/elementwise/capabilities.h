// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of elementwise expressions. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/kernels/wgrad/capabilities.h>

namespace graft::gpu {

constexpr expression_launch::capabilities expression_capabilities() {
  return {.fused = true, .gate_wgrad_is_fused = &gate_wgrad_is_fused};
}

}  // namespace graft::gpu
