// SPDX-License-Identifier: Apache-2.0
// What is derived while compiling stays a constant expression under -fsanitize=undefined, on the CPU's target and on a
// GPU's. It only has to compile.
#include <graft/graft.h>
#include <graft/targets.h>

struct q_proj : graft::linear<64, 32, float, graft::dora<8>> {};
struct rotated : graft::linear<64, 32, float, graft::oft<8>> {};

static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
static_assert(graft::compile<q_proj, graft::fullgraph, graft::training, graft::for_target<graft::sm_90>>::kernels >= 1);
static_assert(graft::compile<rotated, graft::fullgraph>::kernels >= 1);
static_assert(graft::forward_cost<q_proj>(512).flops > 0);
static_assert(graft::mergeable<q_proj> && !graft::unmergeable<q_proj>);
