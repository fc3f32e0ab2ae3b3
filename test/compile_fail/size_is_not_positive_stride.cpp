// SPDX-License-Identifier: Apache-2.0
// An invalid size of the layer itself: a convolution with a stride of 0. It has no line in a formula: line 0.
// expected: graft: this size must be at least 1, or dyn where it is known only at run time
// expected: "stride"|'s', 't', 'r', 'i', 'd', 'e'
// expected-gcc: >, 0, 0>'
// expected-clang: >, 0, 0>'
// expected-nvcc: formula_line=0, size=0LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int stride = 0;
#else
constexpr int stride = 1;
#endif
struct patch : graft::conv2d<16, 3, 3, float, graft::lora<4>, graft::bias::yes, stride, 0> {};
static_assert(graft::compile<patch, graft::fullgraph>::kernels == 1);
