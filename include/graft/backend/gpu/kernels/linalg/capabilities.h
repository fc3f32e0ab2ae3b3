// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of products of small matrices. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/kernel_selection.h>

namespace graft::gpu {

// The kernel of chains needs compute capability 9.0.
constexpr kronecker_chain::capabilities chain_capabilities(int capability) {
  return {.max_size = capability >= 90 ? 64 : 0};
}
constexpr matrix_stack::capabilities stack_capabilities() { return {.max_size = 64}; }

// Sizes that the kernels do not take run node by node.
template <> struct kernels_of_launch<kronecker_chain> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const kronecker_chain& c) {
    to.launches |= launches::chain;
    for (const id i : c.inside()) to.nodes = to.nodes | op_bit(in.g[i].what);
  }
};
template <> struct kernels_of_launch<matrix_stack> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const matrix_stack& s) {
    to.launches |= launches::stack;
    for (const id i : s.inside) to.nodes = to.nodes | op_bit(in.g[i].what);
  }
};

}  // namespace graft::gpu
