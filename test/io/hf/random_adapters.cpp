// SPDX-License-Identifier: Apache-2.0
// Operations on the adapters of a model in random order, on the CPU (see the header).
#include "../../support/random_adapters.h"

TEST_CASE("adapters: any order of operations equals a model that is built anew") {
  const std::uint64_t operations = test::stated("GRAFT_OPERATIONS", 300), seed = test::stated("GRAFT_SEED", 1);
  CAPTURE(seed);
  test::random_adapters<test::on_cpu> d(seed);
  for (std::uint64_t i = 0; i < operations; ++i) {
    CAPTURE(i);
    d.step();
    d.look();
  }
}
