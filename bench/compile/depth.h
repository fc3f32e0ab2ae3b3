// SPDX-License-Identifier: Apache-2.0
// A model of Llama's blocks with LoRA on every projection, of any depth: as one graph, or as one block that repeats.
#pragma once
#include <graft/blocks.h>

namespace compile_bench {

using namespace graft;

struct tuned : adapted<llama, target_modules<"*_proj", lora<16>>> {};

template <int Depth> struct whole_model : tuned {
  static constexpr ex run(block_scope m, ex h) {
    constexpr const char* digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    for (int i = 0; i < Depth; ++i)
      h = llama::run({m.g, m.options, m.g->path(m.g->path(m.path, digits[i / 10]), digits[i % 10])}, h);
    return h;
  }
};
// Nodes of the forward and backward graphs of a model.
template <class Block> constexpr int nodes_of() {
  const block_value v = value_of<Block>();
  return capture_forward(v.formula, v.options).n.size() + capture_backward(v.formula, v.options).n.size();
}

}  // namespace compile_bench
