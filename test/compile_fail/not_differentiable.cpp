// SPDX-License-Identifier: Apache-2.0
// Training through a host function; with detach() it is a constant of the backward pass.
// expected: graft: training, but this has no gradient: write it with the operations of the language, or put detach\(\)
// expected: not_differentiable<
// expected: my_norm\(B @ A\) with \(B @ A\)\[out, in\]|'m', 'y', '_', 'n', 'o', 'r', 'm', '\(', 'B', ' ', '@', ' ', 'A', '\)'
// expected: q_proj
// expected: normed
// expected-gcc: >, 17>'
// expected-clang: >, 17>'
// expected-nvcc: formula_line=17
#include <graft/graft.h>

struct normed {
  static constexpr const char* name = "normed";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols()), B = p.param("B", W.rows(), 16);
    auto norm = host("my_norm", B * A);
#ifndef GRAFT_SHOULD_FAIL
    norm = detach(norm);
#endif
    return W + (B * A) / norm;
  }
};

struct q_proj : graft::linear<64, 32, float, normed> {};
static_assert(graft::compile<q_proj, graft::training>::graph_breaks == 1);
