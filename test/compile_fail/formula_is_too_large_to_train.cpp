// SPDX-License-Identifier: Apache-2.0
// The formula fits, its gradients do not: a graph holds 16 results.
// expected: graft: this formula, or what is derived from it, needs more operations or sizes than a graph holds
// expected-gcc: formula_is_too_large<q_proj, mixture, [0-9]+, 384>'
// expected-clang: formula_is_too_large<q_proj, mixture, [0-9]+, 384>'
// expected-nvcc: Layer=q_proj, Adapter=mixture, formula_line=[0-9]+, operations=384
#include <graft/graft.h>

constexpr const char* names[] = {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9",
                                 "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"};

struct mixture {
  static constexpr const char* name = "mixture";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    for (const char* scale : names) W = p.param(scale, W.rows(), 1) * W;
    return W;
  }
};

struct q_proj : graft::linear<64, 32, float, mixture> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
#ifdef GRAFT_SHOULD_FAIL
static_assert(graft::compile<q_proj, graft::training>::kernels == 1);
#endif
