// SPDX-License-Identifier: Apache-2.0
// A block whose formula the compiler cannot evaluate.
// expected: graft: this is not a block: it needs a static constexpr const char\* name and a static constexpr ex
// expected: not_a_block<
// expected: my_block
#include <graft/blocks.h>
using namespace graft;

struct my_block {
  static constexpr const char* name = "mine";
#ifdef GRAFT_SHOULD_FAIL
  static ex run(block_scope m, ex h) { return h + m.linear("proj", h, h.cols()); }
#else
  static constexpr ex run(block_scope m, ex h) { return h + m.linear("proj", h, h.cols()); }
#endif
};
static_assert(compile<my_block>::graph_breaks == 0);
