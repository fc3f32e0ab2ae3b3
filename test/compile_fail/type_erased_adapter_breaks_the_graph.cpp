// SPDX-License-Identifier: Apache-2.0
// An adapter that is a function at run time. The line is one of adapter/erased.h.
// expected: graft: fullgraph, but the formula of a type-erased adapter is not known while compiling: name the adapter's
// expected: type_erased_adapter_breaks_the_graph<
// expected: type_erased_adapter\(weight\) with weight\[out, in\]|'t', 'y', 'p', 'e', '_', 'e', 'r', 'a', 's', 'e', 'd'
// expected: q_proj
// expected-gcc: >, [0-9]+, 1>'
// expected-clang: >, [0-9]+, 1>'
// expected-nvcc: formula_line=[0-9]+, graph_breaks=1
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 32, float, graft::erased> {};
#else
struct q_proj : graft::linear<64, 32, float, graft::lora<16>> {};
#endif
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels > 0);
static_assert(graft::compile<graft::linear<64, 32, float, graft::erased>>::graph_breaks == 1);
