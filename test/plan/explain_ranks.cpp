// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/adapter/dora.h>
#include <graft/plan/explain_ranks.h>

#include <string>

using namespace graft;

namespace {

template <class Layer> std::string explained(const char* size, int ranks) {
  std::string all;
  explain_ranks<Layer>(size, ranks, 512, [&](const text& t) { all += t.c_str(), all += '\n'; });
  return all;
}
bool has(const std::string& all, const char* line) { return all.find(line) != std::string::npos; }

}  // namespace

TEST_CASE("explain_ranks: the shard of a rank, the collectives, their bytes and when they run") {
  using layer = linear<1024, 2048, float, dora<16>>;
  const std::string outputs = explained<layer>("out", 4), inputs = explained<layer>("in", 4);
  INFO(outputs, inputs);
  CHECK(has(outputs, "DoRA on linear, out divided among 4 ranks, 512 tokens\n  forward\n"));
  CHECK(has(outputs, "no collectives"));
  CHECK(has(outputs, "lora_B.weight"));
  CHECK(has(inputs, "all_reduce_sum[out, 1], 4.1 kB once per change of the parameters"));
  CHECK(has(inputs, "all_reduce_sum[tokens, out], 2.1 MB per call"));
  CHECK(has(explained<layer>("out", 3), "out = 1024 cannot be divided among 3 ranks; use a number of ranks"));
}
