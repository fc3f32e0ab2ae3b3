// SPDX-License-Identifier: Apache-2.0
// Indices of type int: read as 64 bits they would end past the array.
// expected: graft: a view is of float, double, bf16 or f16, or of std::int64_t for indices: copy other numbers into one of these
#include <graft/core/view.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int ids[4] = {0, 1, 2, 3};
#else
constexpr std::int64_t ids[4] = {0, 1, 2, 3};
#endif
constexpr graft::view v = graft::view_of(ids, 4);
static_assert(v.count() == 4);
