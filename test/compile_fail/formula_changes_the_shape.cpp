// SPDX-License-Identifier: Apache-2.0
// A formula that replaces the weight by a tensor of another shape: rows and columns are exchanged.
// expected: graft: the formula must return a weight of the shape of W and a bias of the shape of b
// expected: formula_changes_the_shape<
// expected: table\[in, out\]|'t', 'a', 'b', 'l', 'e', '\[', 'i', 'n', ',', ' ', 'o', 'u', 't', '\]'
// expected: q_proj
// expected: replaced
// expected-gcc: >, 17, 32, 64>'
// expected-clang: >, 17, 32, 64>'
// expected-nvcc: formula_line=17, size=32LL, expected=64LL
#include <graft/graft.h>

struct replaced {
  static constexpr const char* name = "replaced";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
#ifdef GRAFT_SHOULD_FAIL
    return p.param("table", W.cols(), W.rows());
#else
    return p.param("table", W.rows(), W.cols());
#endif
  }
};

struct q_proj : graft::linear<64, 32, float, replaced> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::mergeable);
