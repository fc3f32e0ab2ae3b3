// SPDX-License-Identifier: Apache-2.0
// Embeddings: the gradient of a table sums the rows of each id in a fixed order.
#include "gpu.h"

using namespace test;

TEST_CASE("gpu: gradients of embeddings with ids that repeat, every method, twice the same bits") {
  if (no_gpu()) return;
  for (const method& m : built_in_methods()) {
    if (!exists_on(m, "embedding")) continue;
    INFO(std::string(m.name));
    const layer_graphs graphs = graphs_for("embedding", m.name, false);
    for (const long long vocab : {40LL, 3000LL}) {
      const random_layer<float> l =
          representable(graphs, with(usual_sizes(), {{"tokens", 700}, {"vocab", vocab}, {"dim", 600}}), dtype::f32);
      random_layer<double> exact(graphs, l.shape);
      for (auto& [name, values] : exact.data) std::copy(l.data.at(name).begin(), l.data.at(name).end(), values.begin());
      exact.ids = l.ids, exact.views.at("x").data = exact.ids.data();
      cpu::executor<double> e(graphs, execution_mode::fused);
      gpu_layer g(graphs, dtype::f32, execution_mode::fused);
      REQUIRE(bool(exact.bind(e)));
      REQUIRE(bool(l.bind(g)));
      for (int k = 0; k < graphs.backward.outs; ++k) {
        const std::string name = graphs.backward.output_name(k).c_str();
        std::vector<double> expected = exact.buffer_for(name.c_str(), graphs.backward);
        std::vector<float> first = l.buffer_for(name.c_str(), graphs.backward), again = first;
        REQUIRE(bool(e.backward(exact.x(), exact.dy(), {}, {{name, into(expected)}})));
        REQUIRE(bool(g.backward(l.x(), l.dy(), {}, {{name, into(first)}})));
        REQUIRE(bool(g.backward(l.x(), l.dy(), {}, {{name, into(again)}})));
        CHECK(distance(first, expected) < 1e-5);
        CHECK(first == again);
      }
    }
  }
}
