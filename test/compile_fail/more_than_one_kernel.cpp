// SPDX-License-Identifier: Apache-2.0
// A layer of floats needs two kernels on a GPU, and the message gives the reason. The layer in bf16 needs one.
// expected: graft: one_kernel, but a forward call takes more kernels on this target: change what the reason names, or drop
// expected: more_than_one_kernel<
// expected: the shrink x A.*is inside the product only where the layer stores bf16 or f16, and this one stores f32|'t', 'h', 'e', ' ', 's', 'h', 'r', 'i', 'n', 'k'
// expected: q_proj
// expected-gcc: >, 2>'
// expected-clang: >, 2>'
// expected-nvcc: kernels=2
#include <graft/targets.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<4096, 4096, float, graft::lora<16>> {};
#else
struct q_proj : graft::linear<4096, 4096, graft::bf16, graft::lora<16>> {};
#endif
static_assert(graft::compile<q_proj, graft::fullgraph, graft::one_kernel, graft::for_target<graft::sm_90>>::kernels ==
              1);
