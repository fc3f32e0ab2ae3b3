// SPDX-License-Identifier: Apache-2.0
// OFT with a block size that does not divide the layer's inputs. The line is one of adapter/oft.h.
// expected: graft: this division leaves a remainder: choose a block size or factor that divides the size of the layer
// expected: size_is_not_divisible<
// expected: in / 48|'i', 'n', ' ', '/', ' ', '4', '8'
// expected: q_proj
// expected: oft<48
// expected-gcc: >, [0-9]+, 100, 48>'
// expected-clang: >, [0-9]+, 100, 48>'
// expected-nvcc: formula_line=[0-9]+, size=100LL, divisor=48LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 100, float, graft::oft<48>> {};
#else
struct q_proj : graft::linear<64, 96, float, graft::oft<48>> {};
#endif
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
