// SPDX-License-Identifier: Apache-2.0
// A slice that reaches beyond its operand.
// expected: graft: this takes more than there is: choose a start and a size within the operand
// expected: size_is_too_large<
// expected: slice\(weight, axis 3 from 24 size 16\) with weight\[out, in\]|'s', 'l', 'i', 'c', 'e', '\(', 'w', 'e', 'i'
// expected: q_proj
// expected: half
// expected-gcc: >, 22, 40, 32>'
// expected-clang: >, 22, 40, 32>'
// expected-nvcc: formula_line=22, size=40LL, limit=32LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int start = 24;
#else
constexpr int start = 16;
#endif

struct half {
  static constexpr const char* name = "half";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto part = slice(W, 3, start, 16);
    return W + part * p.param("A", 16, W.cols());
  }
};

struct q_proj : graft::linear<64, 32, float, half> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
