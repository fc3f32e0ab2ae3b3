// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of elementwise expressions. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/kernels/wgrad/capabilities.h>

namespace graft::gpu {

constexpr expression_launch::capabilities expression_capabilities() {
  return {.fused = true, .gate_wgrad_is_fused = &gate_wgrad_is_fused};
}
template <> struct kernels_of_launch<expression_launch> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const expression_launch& e) {
    to.launches |= e.paired_root >= 0 ? launches::two_expressions : launches::expression;
    if (in.g[e.root].what == op::sum_to)
      to.launches |= launches::reduce_bits(reduce_forms_of(in.g, e.root, [&](dim d) { return in.size(d); }));
    if (e.gate_wgrads[0] >= 0) to.launches |= launches::gates;
  }
};

}  // namespace graft::gpu
