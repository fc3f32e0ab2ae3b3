// SPDX-License-Identifier: Apache-2.0
// A multi-LoRA batch on one layer: every row gets the result of its adapter, forward and backward, and the layer is
// unchanged afterwards.
#include <doctest/doctest.h>
#include <graft/run/multi_lora.h>

#include <cstring>

#include "../support/random_layer.h"

using namespace test;

namespace {

constexpr int rows = 7;
mutable_view by_rows(std::vector<double>& v) { return view_into(v.data(), rows, v.size() / rows); }
// Two LoRAs and one DoRA on the same base, with tensors of their own.
struct three_adapters {
  random_layer<double> base{graphs_for("linear", "lora", false), usual_sizes()};
  random_layer<double> other{graphs_for("linear", "lora", false), usual_sizes(), 5};
  random_layer<double> scaled{graphs_for("linear", "dora", false), usual_sizes(), 9};
  cpu::executor<double> layer{base.graphs};

  three_adapters() {
    REQUIRE(bool(base.bind(layer)));
    for (const random_layer<double>* of : {&other, &scaled}) {
      const result<int> added = layer.add(of->graphs);
      REQUIRE(bool(added));
      give(*of, *added);
    }
  }
  // Sets the tensors of the adapter, without those of the base.
  void give(const random_layer<double>& of, int adapter) {
    const graph& bare = of.graphs.base_forward;
    for (const auto& [name, n] : of.shape)
      if (of.graphs.literal.sizes.find(name.c_str()) >= 0 && bare.sizes.find(name.c_str()) < 0)
        REQUIRE(bool(layer.size(name.c_str(), n, adapter)));
    for (const auto& [name, v] : of.scalars)
      if (of.graphs.literal.find(name.c_str()) >= 0) REQUIRE(bool(layer.set(name.c_str(), v, adapter)));
    for (const auto& [name, v] : of.views)
      if (name != "dy" && bare.find(name.c_str()) < 0) REQUIRE(bool(layer.set(name.c_str(), v, adapter)));
  }
  status act(int adapter) {
    if (adapter == no_adapter) return layer.enable(false);
    status s = layer.activate({adapter});
    return s ? layer.enable(true) : s;
  }
};

}  // namespace

TEST_CASE("multi-LoRA: each row has the result of its adapter") {
  three_adapters t;
  const std::vector<int> of_rows{1, 1, no_adapter, 0, 2, 2, 1};
  std::vector<double> y = t.base.buffer_for("y", t.base.graphs.literal), alone = y;
  const std::size_t width = y.size() / rows;
  const status s = forward_rows(t.layer, t.base.x(), by_rows(y), of_rows);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  CHECK(t.layer.active() == std::vector<int>{0});
  CHECK(t.layer.enabled());
  for (std::size_t r = 0; r < rows; ++r) {
    REQUIRE(bool(t.act(of_rows[r])));
    REQUIRE(bool(t.layer.forward(t.base.x(), by_rows(alone))));
    double most = 0;
    for (std::size_t c = r * width; c < (r + 1) * width; ++c) most = std::max(most, std::abs(y[c] - alone[c]));
    CHECK(most < 1e-12);
  }
}

TEST_CASE("multi-LoRA: gradients go to the adapter of each row") {
  three_adapters t;
  const std::vector<int> of_rows{1, 1, no_adapter, 0, 1, 0, 0};
  std::vector<double> dx = t.base.buffer_for("dx", t.base.graphs.backward), dx_alone = dx;
  std::map<int, std::map<std::string, std::vector<double>>> got;
  std::map<int, std::vector<gradient>> wanted;
  for (const int a : {0, 1})
    for (const std::string& p : t.base.parameters()) {
      got[a][p] = t.base.buffer_for(p.c_str(), t.base.graphs.backward);
      wanted[a].push_back({p, into(got[a][p])});
    }
  const status s = backward_rows(t.layer, t.base.x(), t.base.dy(), by_rows(dx), of_rows, wanted);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  for (const int a : {0, 1}) {  // dy is zero in rows of other adapters
    const view all = t.base.dy();
    const std::size_t width = static_cast<std::size_t>(all.count()) / rows;
    std::vector<double> dy(width * rows);
    for (std::size_t r = 0; r < rows; ++r)
      if (of_rows[r] == a)
        for (std::size_t c = r * width; c < (r + 1) * width; ++c) dy[c] = static_cast<const double*>(all.data)[c];
    REQUIRE(bool(t.act(a)));
    for (const std::string& p : t.base.parameters()) {
      std::vector<double> alone = t.base.buffer_for(p.c_str(), t.base.graphs.backward);
      view part = all;
      part.data = dy.data();
      REQUIRE(bool(t.layer.backward(t.base.x(), part, by_rows(dx_alone), {{p, into(alone)}})));
      INFO("adapter ", a, ", ", p);
      CHECK(difference(got[a][p], alone) < 1e-12);
    }
  }
}

TEST_CASE("multi-LoRA: invalid requests change nothing") {
  three_adapters t;
  std::vector<double> y = t.base.buffer_for("y", t.base.graphs.literal);
  const std::vector<double> before = y;
  CHECK(std::string(forward_rows(t.layer, t.base.x(), by_rows(y), {0, 1}).message()).find("for 2 rows") !=
        std::string::npos);
  CHECK(std::string(forward_rows(t.layer, t.base.x(), by_rows(y), {0, 1, 2, 3, 0, 0, 0}).message()) ==
        "there is no adapter 3; name those that add() returned, or none");
  CHECK(std::memcmp(y.data(), before.data(), y.size() * sizeof(double)) == 0);
  CHECK(t.layer.active() == std::vector<int>{0});
}
