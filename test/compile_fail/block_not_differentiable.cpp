// SPDX-License-Identifier: Apache-2.0
// Training of a block through a host function.
// expected: graft: training, but this has no gradient: write it with the operations of the language, or put detach\(\)
// expected: not_differentiable<
// expected: my_gate\(|'m', 'y', '_', 'g', 'a', 't', 'e'
// expected: tuned
// expected-gcc: >, 17>'
// expected-clang: >, 17>'
// expected-nvcc: formula_line=17
#include <graft/blocks.h>
using namespace graft;

struct gated {
  static constexpr const char* name = "gated";
  static constexpr ex run(block_scope m, ex h) {
    auto up = m.linear("up_proj", m.rms_norm("norm", h), m.size("intermediate"));
    auto gate = host("my_gate", up);
#ifndef GRAFT_SHOULD_FAIL
    gate = detach(gate);
#endif
    return h + m.linear("down_proj", mul(gate, up), h.cols());
  }
};
struct tuned : adapted<gated, target_modules<"*_proj", lora<8>>> {};
static_assert(compile<tuned, training>::graph_breaks == 1);
