// SPDX-License-Identifier: Apache-2.0
#include <graft/core/dim.h>

#include "../support/static_check.h"

using namespace graft;

TEST_CASE("dim: a number is itself, an entry of the table is not a number") {
  BOTH(dim{}.v == 1);
  BOTH(dim{0}.is_static());
  BOTH(dim{4096}.is_static());
  BOTH(!entry_dim(0).is_static());
  BOTH(!entry_dim(63).is_static());
  BOTH(entry_dim(0).entry() == 0);
  BOTH(entry_dim(63).entry() == 63);
}

TEST_CASE("dim: equality") {
  BOTH(dim{3} == dim{3});
  BOTH(dim{3} != dim{4});
  BOTH(entry_dim(2) == entry_dim(2));
  BOTH(entry_dim(2) != entry_dim(3));
  BOTH(entry_dim(0) != dim{0});
  BOTH(entry_dim(0).v == dyn);  // entry 0 is encoded as `dyn`; the context tells them apart
}
