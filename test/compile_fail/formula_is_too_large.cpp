// SPDX-License-Identifier: Apache-2.0
// A formula of more operations than a graph holds.
// expected: graft: this formula, or what is derived from it, needs more operations or sizes than a graph holds
// expected: formula_is_too_large<
// expected-gcc: formula_is_too_large<q_proj, series, 21, 384>'
// expected-clang: formula_is_too_large<q_proj, series, 21, 384>'
// expected-nvcc: Layer=q_proj, Adapter=series, formula_line=21, operations=384
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int terms = 250;
#else
constexpr int terms = 10;
#endif

struct series {
  static constexpr const char* name = "series";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto power = p.param("A", W.rows(), W.cols());
    auto sum = W;
    for (int k = 0; k < terms; ++k) power = tanh(power), sum = sum + power;
    return sum;
  }
};

struct q_proj : graft::linear<64, 32, float, series> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
