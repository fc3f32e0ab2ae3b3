// SPDX-License-Identifier: Apache-2.0
// A formula that the compiler cannot evaluate, because constexpr is missing.
// expected: that the compiler can evaluate
// expected: not_an_adapter<
// expected-gcc: not_an_adapter<q_proj, low_rank>'
// expected-clang: not_an_adapter<q_proj, low_rank>'
// expected-nvcc: Layer=q_proj, Type=low_rank\]
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
#define MAYBE_CONSTEXPR
#else
#define MAYBE_CONSTEXPR constexpr
#endif

struct low_rank {
  static constexpr const char* name = "low rank";
  static MAYBE_CONSTEXPR graft::ex weight(graft::scope p, graft::ex W) {
    return W + p.param("B", W.rows(), 16) * p.param("A", 16, W.cols());
  }
};

struct q_proj : graft::linear<64, 32, float, low_rank> {};
using q = graft::compile<q_proj, graft::fullgraph>;
static_assert(q::kernels == 1 && q::mergeable);
