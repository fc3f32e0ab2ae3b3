// SPDX-License-Identifier: Apache-2.0
// Several LoRA layers in sequence in one graph: the cost of capturing a whole model, compared with capturing the block
// that repeats.
#pragma once
#include <graft/graft.h>

namespace compile_bench {

using namespace graft;

constexpr builder stack(int depth) {
  constexpr const char* digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  builder g;
  const scope p{&g};
  const extent width = p.size("width", dyn, 4096);
  ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), width);
  for (int i = 0; i < depth; ++i) {
    const scope here = p.in(digits[i / 10]).in(digits[i % 10]);
    const ex W = here.leaf(op::base, "weight", 2, 1, 1, width, width);
    x = {&g, apply(g, lora<16>::weight(here, W).i, x.i)};
  }
  g.add_output(x.i, "y");
  return simplify(g);
}
constexpr int nodes_of_plan(int depth) {
  const builder g = stack(depth);
  return fuse(g).nodes.size();
}

}  // namespace compile_bench
