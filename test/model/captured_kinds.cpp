// SPDX-License-Identifier: Apache-2.0
// Every method on the other kinds of layer; and that graphs are captured once.
#include <thread>

#include "same_graphs.h"

using namespace test;

TEST_CASE("captured: tables, convolutions and norms") {
  int graphs = loaded_is_compiled<embedding_kind, none>("none") +
               loaded_is_compiled<embedding_kind, lora_embedding<>>("lora_embedding") +
               loaded_is_compiled<embedding_kind, dora_embedding<>>("dora_embedding");
  graphs += loaded_is_compiled<conv2d_kind, none>("none") + loaded_is_compiled<conv2d_kind, lora<>>("lora") +
            loaded_is_compiled<conv2d_kind, lora_with_bias<>>("lora_with_bias") +
            loaded_is_compiled<conv2d_kind, dora<>, true>("dora") + loaded_is_compiled<conv2d_kind, loha<>>("loha") +
            loaded_is_compiled<conv2d_kind, loha_conv<>>("loha_conv");
  graphs += loaded_is_compiled<norm_kind<false>, none, true>("none") +
            loaded_is_compiled<norm_kind<false>, ln_tuning, true>("ln_tuning") +
            loaded_is_compiled<norm_kind<false>, ln_tuning_weight>("ln_tuning_weight") +
            loaded_is_compiled<norm_kind<true>, none>("none") +
            loaded_is_compiled<norm_kind<true>, ln_tuning, true>("ln_tuning") +
            loaded_is_compiled<norm_kind<true>, ln_tuning_weight>("ln_tuning_weight");
  CHECK(graphs == 150);
}

TEST_CASE("captured: once, whoever asks, from any thread") {
  const method_table methods;
  const method_table copy = methods;
  std::shared_ptr<const void> found[8];
  std::vector<std::thread> threads;
  for (auto& at : found) threads.emplace_back([&methods, &at] { at = methods.graphs("linear", "dora", true)->owner; });
  for (std::thread& t : threads) t.join();
  REQUIRE(found[0] != nullptr);
  for (const auto& f : found) CHECK(f == found[0]);
  CHECK(copy.graphs("linear", "dora", true)->owner == found[0]);
  CHECK(copy.graphs("linear", "dora", true)->forward.n == methods.graphs("linear", "dora", true)->forward.n);
  CHECK(methods.graphs("linear", "dora", false)->owner != found[0]);
  CHECK(methods.graphs("linear", "lora", true)->owner != found[0]);
  CHECK(methods.graphs("conv2d", "dora", true)->owner != found[0]);
  CHECK(built_in_methods().graphs("linear", "dora", true)->owner != found[0]);
}
