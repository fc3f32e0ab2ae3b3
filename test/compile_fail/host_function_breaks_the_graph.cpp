// SPDX-License-Identifier: Apache-2.0
// A host function in the formula, from which nothing can be derived. Without fullgraph it is allowed.
// expected: graft: fullgraph, but a host function cannot become part of a kernel: write it with the operations of the
// expected: host_function_breaks_the_graph<
// expected: my_function\(B @ A\) with \(B @ A\)\[out, in\]|'m', 'y', '_', 'f', 'u', 'n', 'c', 't', 'i', 'o', 'n', '\(', 'B', ' ', '@'
// expected: q_proj
// expected: squashed
// expected-gcc: >, 17, 1>'
// expected-clang: >, 17, 1>'
// expected-nvcc: formula_line=17, graph_breaks=1
#include <graft/graft.h>

struct squashed {
  static constexpr const char* name = "squashed";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols()), B = p.param("B", W.rows(), 16);
    return W + host("my_function", B * A);
  }
};

struct q_proj : graft::linear<64, 32, float, squashed> {};
#ifdef GRAFT_SHOULD_FAIL
using q = graft::compile<q_proj, graft::fullgraph>;
#else
using q = graft::compile<q_proj>;
#endif
static_assert(q::graph_breaks == 1 && q::mergeable);
