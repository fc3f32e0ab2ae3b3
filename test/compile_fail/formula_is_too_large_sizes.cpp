// SPDX-License-Identifier: Apache-2.0
// A formula with more sizes than a graph holds; its operations would fit.
// expected: graft: this formula, or what is derived from it, needs more operations or sizes than a graph holds
// expected-gcc: formula_is_too_large<q_proj, parts, [0-9]+, 384>'
// expected-clang: formula_is_too_large<q_proj, parts, [0-9]+, 384>'
// expected-nvcc: Layer=q_proj, Adapter=parts, formula_line=[0-9]+, operations=384
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int most = 100;
#else
constexpr int most = 8;
#endif

struct parts {
  static constexpr const char* name = "parts";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto size = W.cols();
    for (int k = 0; k < most; ++k) size = size * p.size("n");
    return W + detach(row_norm(p.param("A", W.rows(), size)));
  }
};

struct q_proj : graft::linear<64, 32, float, parts> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels > 0);
