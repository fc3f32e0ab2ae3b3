// SPDX-License-Identifier: Apache-2.0
// A type without a formula is used as an adapter.
// expected: graft: this is not an adapter: it needs a static constexpr const char\* name and a static constexpr ex weight
// expected: not_an_adapter<
// expected-gcc: not_an_adapter<q_proj, settings>'
// expected-clang: not_an_adapter<q_proj, settings>'
// expected-nvcc: Layer=q_proj, Type=settings\]
#include <graft/graft.h>

struct settings {
  static constexpr int rank = 16;
};

#ifdef GRAFT_SHOULD_FAIL
struct q_proj : graft::linear<64, 32, float, settings> {};
#else
struct q_proj : graft::linear<64, 32, float, graft::lora<settings::rank> > {};
#endif
using q = graft::compile<q_proj, graft::fullgraph>;
static_assert(q::kernels == 1 && q::mergeable);
