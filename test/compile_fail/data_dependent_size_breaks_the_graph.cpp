// SPDX-License-Identifier: Apache-2.0
// A factor whose number of rows is known only after a host function ran.
// expected: graft: fullgraph, but a number of rows depends on the data: keep every row and multiply the unwanted ones by 0
// expected: data_dependent_size_breaks_the_graph<
// expected: drop_small_rows\(A\) with A\[16, in\]|'d', 'r', 'o', 'p', '_', 's', 'm', 'a', 'l', 'l', '_', 'r', 'o', 'w', 's'
// expected: q_proj
// expected: pruned
// expected-gcc: >, 19, 1>'
// expected-clang: >, 19, 1>'
// expected-nvcc: formula_line=19, graph_breaks=1
#include <graft/graft.h>

struct pruned {
  static constexpr const char* name = "pruned";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols());
#ifdef GRAFT_SHOULD_FAIL
    auto left = p.size("left");
    auto rows = host_rows("drop_small_rows", left, A);
    return W + p.param("B", W.rows(), left) * rows;
#else
    auto masked = p.param("mask", 16) * A;
    return W + p.param("B", W.rows(), 16) * masked;
#endif
  }
};

struct q_proj : graft::linear<64, 32, float, pruned> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::mergeable);
