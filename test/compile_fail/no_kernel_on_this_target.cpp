// SPDX-License-Identifier: Apache-2.0
// A block with experts, for a target of one's own that has no kernel of routing.
// expected: graft: fullgraph, but this target has no kernel for an operation of the block
// expected: no_kernel_on_this_target<
// expected: route\(|'r', 'o', 'u', 't', 'e'
// expected: tuned
#include <graft/blocks.h>
#include <graft/targets.h>
using namespace graft;

constexpr target accelerator_without_routing() {
  target t = sm_90;
  t.name = "accelerator", t.can<nodes_launch>().runs = [](op o) { return o != op::route; };
  return t;
}
constexpr target accelerator = accelerator_without_routing();
struct tuned : adapted<mixtral, target_modules<"*_proj", lora<8>>> {};
#ifdef GRAFT_SHOULD_FAIL
using facts = compile<tuned, fullgraph, for_target<accelerator>>;
#else
using facts = compile<tuned, fullgraph>;
#endif
static_assert(facts::kernels > 0);
