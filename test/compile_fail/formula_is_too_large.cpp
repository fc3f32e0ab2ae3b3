// SPDX-License-Identifier: Apache-2.0
// A formula with so many operations that the compiler stops evaluating it.
// expected: graft: this formula, or what is derived from it, takes more steps than the compiler allows
// expected: formula_is_too_large<
// expected-gcc: formula_is_too_large<q_proj, series>'
// expected-clang: formula_is_too_large<q_proj, series>'
// expected-nvcc: Layer=q_proj, Adapter=series
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
