// SPDX-License-Identifier: Apache-2.0
// A base that is codes, on the GPU: every encoding, every number of tokens that another kernel takes, with a side branch,
// with factors, with both; forward and backward against the same numbers in double.
#include "../support/coded.h"
#include "gpu.h"

using namespace test;

namespace {

struct coded_case {
  random_layer<float> layer;
  coded_and_plain weight;

  coded_case(const layer_graphs& g, const sizes& s, const encoding& how)
      : layer(representable(g, s, dtype::bf16)), weight(layer.data.at("weight"), s.at("out"), s.at("in"), how) {
    layer.data.at("weight") = weight.numbers;
    layer.views.at("weight").data = layer.data.at("weight").data();
  }
  gpu_layer bound(dtype type) const {
    gpu_layer g(layer.graphs, type, mode::fused);
    REQUIRE(bool(layer.bind(g)));
    const view codes = weight.codes.as_view();
    const status set = g.set("weight", codes);
    INFO(std::string(set ? "" : set.message()));
    REQUIRE(bool(set));
    return g;
  }
};

}  // namespace

TEST_CASE("gpu: products with codes of every encoding, by every kernel that reads them") {
  if (no_gpu()) return;
  const std::vector<std::pair<const char*, sizes>> methods{{"lora", {{"r", 12}}}, {"dora", {{"r", 40}}}, {"ia3", {}}};
  std::size_t turn = 0;
  for (const named_encoding& e : every_encoding())
    for (const long long in : {256, 1088})
      for (const long long tokens : {1, 8, 13, 32, 50, 64, 130}) {
        const char* const method = methods[turn % methods.size()].first;
        const sizes& more = methods[turn++ % methods.size()].second;
        INFO(e.name, ", ", method, ", in ", in, ", ", tokens, " tokens");
        const layer_graphs g = graphs_for("linear", method, true);
        const coded_case c(g, with(with(usual_sizes(), {{"tokens", tokens}, {"out", 200}, {"in", in}}), more), e.how);
        gpu_layer on_gpu = c.bound(dtype::bf16);
        std::vector<float> y = c.layer.room("y", g.forward);
        const status ran = on_gpu.forward(c.layer.x(), into(y));
        INFO(std::string(ran ? "" : ran.message()));
        REQUIRE(bool(ran));
        CHECK(distance(y, reference(c.layer)) < 1e-2);
      }
}
TEST_CASE("gpu: rows so long that thread blocks share them, with parts of S from all of them") {
  if (no_gpu()) return;
  for (const named_encoding& e : every_encoding())
    for (const auto& length : {std::pair{4096, 1}, {4096, 16}, {8256, 8}, {14336, 3}, {14336, 20}})
      for (const int rank : {16, 64}) {
        const int in = length.first, tokens = length.second;
        if (e.name != "nf4 64" && e.name != "nf4 64 double" && e.name != "nf4 32 double by rows" && e.name != "int8" &&
            e.name != "fp8 by row" && e.how.block_bytes == 0)
          continue;  // the others are read by the same kernels
        INFO(e.name, ", in ", in, ", ", tokens, " tokens, rank ", rank);
        const layer_graphs g = graphs_for("linear", "lora", false);
        const coded_case c(g, with(usual_sizes(), {{"tokens", tokens}, {"out", 136}, {"in", in}, {"r", rank}}), e.how);
        gpu_layer on_gpu = c.bound(dtype::bf16);
        std::vector<float> y = c.layer.room("y", g.forward), again = y;
        for (std::vector<float>* to : {&y, &again}) {  // the second one begins while the first one ends
          const status ran = on_gpu.forward(c.layer.x(), into(*to));
          INFO(std::string(ran ? "" : ran.message()));
          REQUIRE(bool(ran));
        }
        CHECK(distance(y, reference(c.layer)) < 1e-2);
        CHECK(y == again);
      }
}
TEST_CASE("gpu: units that are whole have kernels of their own, with a side branch and without") {
  if (no_gpu()) return;
  for (const named_encoding& e : every_encoding())
    for (const auto& size : {std::pair{144, 1}, {144, 13}, {4240, 8}, {4240, 16}, {4240, 29}, {2128, 3}})
      for (const int rank : {0, 16, 48}) {
        const int most = size.first, tokens = size.second;
        const bool of_64 = e.name == "nf4 64" || e.name == "fp4 64";
        if (has_four_bits(e.how) && !of_64 && e.name != "nf4 64 double" && e.name != "nf4 32")
          continue;                                           // read by the same kernels, or by others
        const int out = of_64 ? most : std::min(most, 2192);  // more units than thread blocks
        INFO(e.name, ", out ", out, ", ", tokens, " tokens, rank ", rank);
        const bool has_bias = tokens % 8 != 0;  // without one, a short way to the end
        const layer_graphs g = graphs_for("linear", rank > 0 ? "lora" : "none", has_bias);
        const coded_case c(
            g, with(usual_sizes(), {{"tokens", tokens}, {"out", out}, {"in", 4096}, {"r", std::max(rank, 1)}}), e.how);
        gpu_layer on_gpu = c.bound(dtype::bf16);
        std::vector<float> y = c.layer.room("y", g.forward), again = y;
        for (std::vector<float>* to : {&y, &again, &again}) {  // parts of S take turns
          const status ran = on_gpu.forward(c.layer.x(), into(*to));
          INFO(std::string(ran ? "" : ran.message()));
          REQUIRE(bool(ran));
        }
        CHECK(distance(y, reference(c.layer)) < 1e-2);
        CHECK(y == again);
      }
}
