// SPDX-License-Identifier: Apache-2.0
// A sum of operands of different sizes: one scale per output belongs to the rows of W, and this layer is not square.
// expected: graft: these operands do not fit: make the two sizes equal
// expected: sizes_differ<
// expected: weight \* scale with weight\[out, in\] and scale\[1, out\]|'w', 'e', 'i', 'g', 'h', 't', ' ', '\*', ' ', 's'
// expected: q_proj
// expected: output_scale
// expected-gcc: >, 21, 32, 64>'
// expected-clang: >, 21, 32, 64>'
// expected-nvcc: formula_line=21, left=32LL, right=64LL
#include <graft/graft.h>

struct output_scale {
  static constexpr const char* name = "output scale";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
#ifdef GRAFT_SHOULD_FAIL
    auto scale = p.param("scale", 1, W.rows());
#else
    auto scale = p.param("scale", 1, W.cols());
#endif
    return mul(W, scale);
  }
};

struct q_proj : graft::linear<64, 32, float, output_scale> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
