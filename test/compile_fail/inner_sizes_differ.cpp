// SPDX-License-Identifier: Apache-2.0
// A matrix product whose inner sizes differ. The error appears once, however often the layer is used.
// expected: graft: this matrix product does not fit: make the columns of the left operand equal to the rows of
// expected: inner_sizes_differ<
// expected: B @ A with B\[out, 8\] and A\[16, in\]|'B', ' ', '@', ' ', 'A', ' ', 'w', 'i', 't', 'h', ' ', 'B', '\[',
// expected: q_proj
// expected: low_rank
// expected-gcc: >, 23, 8, 16>'
// expected-clang: >, 23, 8, 16>'
// expected-nvcc: formula_line=23, left_columns=8LL, right_rows=16LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int rank = 8;
#else
constexpr int rank = 16;
#endif

struct low_rank {
  static constexpr const char* name = "low rank";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols()), B = p.param("B", W.rows(), rank);
    return W + B * A;
  }
};

struct q_proj : graft::linear<64, 32, float, low_rank> {};
using q = graft::compile<q_proj, graft::fullgraph>;
static_assert(q::kernels == 1 && q::unmergeable);
static_assert(graft::mergeable<q_proj>);
static_assert(graft::compile<q_proj, graft::training>::kernels == 1);
q one_more;
