// SPDX-License-Identifier: Apache-2.0
// Two tensors of one name with different shapes.
// expected: graft: two tensors of this formula have one name but differ in kind or shape: give the second one another name
// expected: name_is_taken<
// expected: \{"A"\}|spelled<'A'>|'A'
// expected: q_proj
// expected: low_rank
// expected-gcc: >, 23>'
// expected-clang: >, 23>'
// expected-nvcc: formula_line=23
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr const char* left = "A";
#else
constexpr const char* left = "B";
#endif

struct low_rank {
  static constexpr const char* name = "low rank";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols());
    auto B = p.param(left, W.rows(), 16);
    return W + B * A;
  }
};

struct q_proj : graft::linear<64, 32, float, low_rank> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
