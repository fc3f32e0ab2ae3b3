// SPDX-License-Identifier: Apache-2.0
// A weight of 4 bits: no kernel decodes it yet.
// expected: graft: fullgraph, but no kernel reads this storage type yet: store the weight as float, double or bf16
// expected: storage_has_no_lowering<
// expected: q_proj
// expected: nf4<64
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 32, graft::nf4<64>, graft::lora<16>> {};
#else
struct q_proj : graft::linear<64, 32, graft::bf16, graft::lora<16>> {};
#endif
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
static_assert(graft::compile<graft::linear<64, 32, graft::nf4<64>, graft::lora<16>>>::kernels == 1);
