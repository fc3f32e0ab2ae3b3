// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of products of small matrices. Needs no CUDA header.
#pragma once
#include <graft/plan/target.h>

namespace graft::gpu {

// The kernel of chains needs compute capability 9.0.
constexpr matrix_chain::capabilities chain_capabilities(int capability) {
  return {.max_size = capability >= 90 ? 64 : 0};
}
constexpr matrix_stack::capabilities stack_capabilities() { return {.max_size = 64}; }

}  // namespace graft::gpu
