// SPDX-License-Identifier: Apache-2.0
// A rank of 0: the adapter's tensors would be empty. The line is one of adapter/lora.h.
// expected: graft: this size must be at least 1, or dyn where it is known only at run time
// expected: size_is_not_positive<
// expected: lora_B.weight\[out, 0\]|'l', 'o', 'r', 'a', '_', 'B', '\.', 'w', 'e', 'i', 'g', 'h', 't', '\[', 'o', 'u', 't', ',', ' ', '0', '\]'
// expected: q_proj
// expected: lora<0
// expected-gcc: >, [0-9]+, 0>'
// expected-clang: >, [0-9]+, 0>'
// expected-nvcc: formula_line=[0-9]+, size=0LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 32, float, graft::lora<0>> {};
#else
struct q_proj : graft::linear<64, 32, float, graft::lora<graft::dyn>> {};
#endif
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
