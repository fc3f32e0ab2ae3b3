// SPDX-License-Identifier: Apache-2.0
// A block with experts, for a target that has no kernels of experts.
// expected: graft: fullgraph, but this target has no kernel for an operation of the block
// expected: no_kernel_on_this_target<
// expected: route\(|'r', 'o', 'u', 't', 'e'
// expected: tuned
#include <graft/blocks.h>
#include <graft/targets.h>
using namespace graft;

struct tuned : adapted<mixtral, target_modules<"*_proj", lora<8>>> {};
#ifdef GRAFT_SHOULD_FAIL
using facts = compile<tuned, fullgraph, for_target<sm_90>>;
#else
using facts = compile<tuned, fullgraph>;
#endif
static_assert(facts::kernels > 0);
