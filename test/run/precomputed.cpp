// SPDX-License-Identifier: Apache-2.0
// Precomputed values, which depend on parameters only, are computed once, and again after parameters_changed().
#include <doctest/doctest.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

std::vector<float> forward(cpu::executor<float>& e, const random_layer<float>& l) {
  std::vector<float> y = l.buffer_for("y", l.graphs.literal);
  REQUIRE(bool(e.forward(l.x(), into(y))));
  return y;
}
std::vector<float> fresh(const random_layer<float>& l) {
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  return forward(e, l);
}
sizes wide() {  // large enough that no branch is folded into the weight
  sizes s = usual_sizes();
  s["out"] = s["in"] = 128;
  return s;
}

}  // namespace

TEST_CASE("precomputed: DoRA's factor is stale until parameters_changed()") {
  random_layer<float> l(graphs_for("linear", "dora", false), wide());
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  const std::vector<float> before = forward(e, l);
  for (float& m : l.data.at("lora_magnitude_vector")) m *= 2;
  CHECK(difference(forward(e, l), before) == 0);  // the precomputed value is still in use
  REQUIRE(bool(e.parameters_changed()));
  CHECK(difference(forward(e, l), fresh(l)) == 0);
  CHECK(difference(forward(e, l), before) > 0.1);
}

TEST_CASE(
    "precomputed: every parameter of every method takes effect after parameters_changed(), forward and backward") {
  for (const layer_variant& c : every_layer_variant()) {
    if (c.graphs.backward.outs == 0) continue;
    INFO(c.name);
    random_layer<float> l(c.graphs, usual_sizes());
    cpu::executor<float> e(c.graphs);
    REQUIRE(bool(l.bind(e)));
    auto gradient_of = [&](cpu::executor<float>& by, const std::string& p) {
      std::vector<float> d = l.buffer_for(p.c_str(), c.graphs.backward);
      REQUIRE(bool(by.backward(l.x(), l.dy(), {}, {{p, into(d)}})));
      return d;
    };
    forward(e, l);
    for (const std::string& p : l.parameters()) {
      gradient_of(e, p);
      for (float& v : l.data.at(p)) v = 0.75F * v + 0.01F;
      REQUIRE(bool(e.parameters_changed()));
      cpu::executor<float> other(c.graphs);
      REQUIRE(bool(l.bind(other)));
      INFO(p);
      CHECK(difference(forward(e, l), forward(other, l)) == 0);
      CHECK(difference(gradient_of(e, p), gradient_of(other, p)) == 0);
    }
  }
}

TEST_CASE("precomputed: setting a base weight at another address takes effect") {
  random_layer<float> l(graphs_for("linear", "dora", false), wide());
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  const std::vector<float> before = forward(e, l);
  std::vector<float> other = l.data.at("weight");
  for (float& w : other) w = -0.5F * w + 0.1F;
  l.data.at("weight") = other;
  l.views["weight"].data = l.data.at("weight").data();
  REQUIRE(bool(e.set("weight", l.views.at("weight"))));
  CHECK(difference(forward(e, l), fresh(l)) == 0);
  CHECK(difference(forward(e, l), before) > 0.01);
}

TEST_CASE("precomputed: another scaling, another rank, another number of tokens") {
  random_layer<float> l(graphs_for("linear", "lora", false), wide());
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  forward(e, l);
  l.scalars["scaling"] = 3;
  REQUIRE(bool(e.set("scaling", 3.0)));
  CHECK(difference(forward(e, l), fresh(l)) == 0);
  for (const long long tokens : {1, 100, 3}) {
    sizes s = wide();
    s["tokens"] = tokens;
    random_layer<float> more(l.graphs, s);
    for (auto& [name, v] : more.views)
      if (name != "x" && name != "dy") v = l.views.at(name);
    more.scalars = l.scalars;
    CHECK(difference(forward(e, more), fresh(more)) == 0);
  }
}

TEST_CASE("precomputed: disabling and enabling an adapter restores the result") {
  const random_layer<float> l(graphs_for("linear", "oft", true), usual_sizes());
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  CHECK(e.enabled());
  const std::vector<float> on = forward(e, l);
  REQUIRE(bool(e.enable(false)));
  CHECK_FALSE(e.enabled());
  CHECK(difference(forward(e, l), on) > 0.01);
  REQUIRE(bool(e.enable(true)));
  CHECK(difference(forward(e, l), on) == 0);
}

TEST_CASE("precomputed: two layers share nothing") {
  const random_layer<float> a(graphs_for("linear", "dora", false), wide(), 1), b(a.graphs, wide(), 2);
  cpu::executor<float> first(a.graphs), second(a.graphs);
  REQUIRE(bool(a.bind(first)));
  REQUIRE(bool(b.bind(second)));
  const std::vector<float> y = forward(first, a), z = forward(second, b);
  CHECK(difference(forward(first, a), y) == 0);
  CHECK(difference(y, z) > 0.1);
}

// A method that scales the outputs is folded into W'ᵀ, so that few tokens are multiplied by rows of W', as in the
// bare layer.
TEST_CASE(
    "precomputed: a folded RoAd gives the same bits as the bare layer with the merged weight, also after a change") {
  sizes s = usual_sizes();
  s["out"] = 768, s["in"] = 1024, s["half_group"] = 32;
  for (const char* method : {"road_1", "road_2", "road_4"})
    for (const long long tokens : {1, 16, 100}) {
      INFO(method, ", ", tokens, " tokens");
      s["tokens"] = tokens;
      random_layer<float> l(graphs_for("linear", method, false), s);
      cpu::executor<float> e(l.graphs);
      REQUIRE(bool(l.bind(e)));
      for (int change = 0; change < 2; ++change) {
        const std::vector<float> y = forward(e, l);
        REQUIRE(e.runs_folded());
        std::vector<float> weight(l.data.at("weight").size());
        REQUIRE(bool(e.merge(into(weight))));
        random_layer<float> merged(graphs_for("linear", "none", false), s);
        for (auto& [name, v] : merged.views) v = l.views.at(name);
        merged.views["weight"].data = weight.data();
        CHECK(difference(y, fresh(merged)) == 0);
        for (float& v : l.data.at("road_theta")) v *= 0.5F;
        REQUIRE(bool(e.parameters_changed()));
      }
    }
}
