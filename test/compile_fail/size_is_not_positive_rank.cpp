// SPDX-License-Identifier: Apache-2.0
// A rank below zero that is not dyn.
// expected: graft: this size must be at least 1, or dyn where it is known only at run time
// expected: size_is_not_positive<
// expected: q_proj
// expected: lora<-3
// expected-gcc: \{"r"\}>, 0, -3>'
// expected-clang: >, 0, -3>'
// expected-nvcc: formula_line=0, size=-3LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 32, float, graft::lora<-3>> {};
#else
struct q_proj : graft::linear<64, 32, float, graft::lora<3>> {};
#endif
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
