// SPDX-License-Identifier: Apache-2.0
// Every method on a linear layer but the rotations: what is captured at load is what the compiler captures.
#include "same_graphs.h"

using namespace test;

TEST_CASE("captured: low-rank, scaling and block methods on a linear layer") {
  using enum lokr_form;
  auto on = []<class A>(const char* name, A) { return loaded_is_compiled<linear_kind, A>(name); };
  int graphs = on("none", none{}) + on("lora", lora<>{}) + on("dora", dora<>{}) + on("adalora", adalora<>{}) +
               on("ia3", ia3{}) + on("ia3_feedforward", ia3_feedforward{}) + on("loha", loha<>{}) +
               on("lokr", lokr<>{}) + on("lokr_both_full", lokr<dyn, -1, full, full>{}) +
               on("lokr_first_low", lokr<dyn, -1, low_rank, full>{}) +
               on("lokr_both_low", lokr<dyn, -1, low_rank, low_rank>{}) + on("vera", vera<>{}) + on("miss", miss<>{}) +
               on("miss_mini", miss_mini<>{}) + on("miss_bat", miss_bat<>{}) + on("vblora", vblora<dyn, dyn>{});
  graphs += loaded_is_compiled<linear_kind, lora_with_bias<>, true>("lora_with_bias");
  graphs += loaded_is_compiled<linear_kind, dora<>, true>("dora");
  CHECK(graphs == 180);
}
