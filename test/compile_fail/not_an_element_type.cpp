// SPDX-License-Identifier: Apache-2.0
// A layer of integers.
// expected: graft: this is not an element type: use float, double, bf16, nf4<Block> or int8
// expected: not_an_element_type<
// expected: q_proj
// expected-gcc: not_an_element_type<q_proj, int>'
// expected-clang: not_an_element_type<q_proj, int>'
// expected-nvcc: Type=int\]
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 32, int, graft::lora<16>> {};
#else
struct q_proj : graft::linear<64, 32, float, graft::lora<16>> {};
#endif
using q = graft::compile<q_proj, graft::fullgraph>;
static_assert(q::kernels == 1 && q::mergeable);
