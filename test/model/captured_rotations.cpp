// SPDX-License-Identifier: Apache-2.0
// Every method that rotates or reflects: what is captured at load is what the compiler captures.
#include "same_graphs.h"

using namespace test;

TEST_CASE("captured: rotations and reflections on a linear layer") {
  using enum oft_blocks;
  using enum oft_constraint;
  auto on = []<class A>(const char* name, A) { return loaded_is_compiled<linear_kind, A>(name); };
  const int graphs =
      on("hra", hra<>{}) + on("hra_gram_schmidt", hra_gram_schmidt<>{}) + on("oft", oft<dyn>{}) +
      on("oft_shared", oft<dyn, shared>{}) + on("oft_projected", oft<dyn, separate, projected>{}) +
      on("oft_shared_projected", oft<dyn, shared, projected>{}) + on("oft_neumann", oft_neumann<dyn, dyn>{}) +
      on("oft_neumann_shared", oft_neumann<dyn, dyn, shared>{}) +
      on("oft_neumann_projected", oft_neumann<dyn, dyn, separate, projected>{}) +
      on("oft_neumann_shared_projected", oft_neumann<dyn, dyn, shared, projected>{}) + on("boft", boft<dyn, dyn>{});
  CHECK(graphs == 110);
}
