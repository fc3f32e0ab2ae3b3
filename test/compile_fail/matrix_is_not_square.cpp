// SPDX-License-Identifier: Apache-2.0
// The inverse of a matrix with more columns than rows.
// expected: graft: an inverse, a Neumann series or a rotation needs square matrices: make rows and columns equal
// expected: matrix_is_not_square<
// expected: M\[16, 8\]|'M', '\[', '1', '6', ',', ' ', '8', '\]'
// expected: q_proj
// expected: mixed
// expected-gcc: >, 22, 16, 8>'
// expected-clang: >, 22, 16, 8>'
// expected-nvcc: formula_line=22, rows=16LL, columns=8LL
#include <graft/graft.h>

struct mixed {
  static constexpr const char* name = "mixed";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols()), B = p.param("B", W.rows(), 16);
#ifdef GRAFT_SHOULD_FAIL
    auto M = p.param("M", 16, 8);
#else
    auto M = p.param("M", 16, 16);
#endif
    return W + B * (inverse(M) * A);
  }
};

struct q_proj : graft::linear<64, 32, float, mixed> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
