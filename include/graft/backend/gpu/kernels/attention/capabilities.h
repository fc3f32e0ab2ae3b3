// SPDX-License-Identifier: Apache-2.0
// What a GPU can do of an attention_launch. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/attention.h>

namespace graft::gpu {

// Does decode attention read q, k and v separately and apply RoPE itself?
constexpr bool fuses_heads(const graph& g, id i, const size_values& s, dtype type, const target& t) {
  const attention_choice c = choice_of(g, i, attention_size_of(g, i, s, type), t);
  return c.path == attention_path::decode && !c.mma;
}
constexpr attention_launch::capabilities attention_capabilities() { return {.fuses_heads = &fuses_heads}; }

}  // namespace graft::gpu
