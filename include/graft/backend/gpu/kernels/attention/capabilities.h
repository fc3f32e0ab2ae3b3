// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of an attention_launch. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>
#include <graft/backend/gpu/kernels/rowwise/capabilities.h>

namespace graft::gpu {

// Returns true if decode attention reads q, k and v separately and applies RoPE itself. Sinks are columns of the
// concatenation.
constexpr bool fuses_heads(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  const attention_size p = attention_size_of(g, i, s, type);
  const attention_choice c = choice_of(g, i, p, t);
  return c.path == attention_path::decode && !c.mma && !p.sinks;
}
constexpr attention_launch::capabilities attention_capabilities() { return {.fuses_heads = &fuses_heads}; }

// Only programs with models compile the fused kernels; without them the nodes run one by one.
template <> struct kernels_of_launch<attention_launch> {
  static constexpr void add(kernel_selection& to, const type_plan& in, const attention_launch& l) {
    to.nodes = to.nodes | op_bit(in.g[l.node].what);
    if (l.heads >= 0) kernels_of_launch<rowwise_launch>::add(to, in, in.p.all<rowwise_launch>()[l.heads]);
  }
};

}  // namespace graft::gpu
