// SPDX-License-Identifier: Apache-2.0
// A parameter with the name of the base layer's weight.
// expected: "weight", "bias" and "x" belong to the layer itself|weight.*bias.*belong to the layer itself
// expected: name_is_taken<
// expected: q_proj
// expected: replaced
// expected-gcc: "weight"\}>, 20>'
// expected-clang: 'w', 'e', 'i', 'g', 'h', 't'>, 20>'|weight.*, 20>'
// expected-nvcc: formula_line=20
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr const char* own = "weight";
#else
constexpr const char* own = "own_weight";
#endif

struct replaced {
  static constexpr const char* name = "replaced";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) { return p.param(own, W.rows(), W.cols()); }
};

struct q_proj : graft::linear<64, 32, float, replaced> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
