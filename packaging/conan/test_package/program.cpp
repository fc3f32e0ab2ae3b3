// SPDX-License-Identifier: Apache-2.0
// The smallest user of the package: a layer whose facts are known while compiling.
#include <graft/graft.h>
#include <graft/run/print_plan.h>

struct q_proj : graft::linear<64, 64, float, graft::dora<4>> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);

int main() { graft::explain<q_proj>(16); }
