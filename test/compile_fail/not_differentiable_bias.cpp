// SPDX-License-Identifier: Apache-2.0
// Training through a host function in the formula of the bias, whose value no other gradient needs.
// expected: graft: training, but this has no gradient
// expected: my_shift\(beta\) with beta\[out\]|'m', 'y', '_', 's', 'h', 'i', 'f', 't', '\(', 'b', 'e', 't', 'a', '\)'
// expected-gcc: >, 20>'
// expected-clang: >, 20>'
// expected-nvcc: formula_line=20
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
using wanted = graft::training;
#else
struct wanted {};
#endif

struct shifted {
  static constexpr const char* name = "shifted";
  static constexpr graft::ex weight(graft::scope, graft::ex W) { return W; }
  static constexpr graft::ex bias(graft::scope p, graft::ex b) {
    return b + host("my_shift", p.param("beta", b.rows()));
  }
};

struct q_proj : graft::linear<64, 32, float, shifted, graft::bias::yes> {};
static_assert(graft::compile<q_proj, wanted>::graph_breaks == 1);
