// SPDX-License-Identifier: Apache-2.0
// A method whose formula is not that of one expert's matrix, on the experts of a mixture.
// expected: graft: this method does not exist on the experts of a mixture
// expected: not_on_experts<
// expected: OFT \(Cayley\)|'O', 'F', 'T'
// expected: tuned
#include <graft/blocks.h>
using namespace graft;

#ifdef GRAFT_SHOULD_FAIL
struct tuned : adapted<mixtral, target_modules<"experts.down_proj", oft<32>>> {};
#else
struct tuned : adapted<mixtral, target_modules<"experts.down_proj", dora<8>>> {};
#endif
static_assert(compile<tuned, fullgraph, training>::graph_breaks == 0);
