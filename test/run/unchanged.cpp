// SPDX-License-Identifier: Apache-2.0
// Invalid input changes nothing: the layer gives the same results afterwards, and no memory was written.
#include <doctest/doctest.h>

#include "../support/forward.h"

using namespace test;

TEST_CASE("unchanged: after a refused tensor, scalar or size, for every method") {
  static const float junk[4096]{};
  for (const layer_variant& c : every_layer_variant()) {
    const random_layer<float> l(c.graphs, usual_sizes());
    cpu::executor<float> e(c.graphs);
    REQUIRE(bool(l.bind(e)));
    INFO(c.name);
    const std::vector<float> before = forward(e, l);
    for (const auto& [name, v] : l.views) {
      if (name == "x" || name == "dy" || c.graphs.literal.find(name.c_str()) < 0) continue;
      view wrong = v;
      wrong.data = junk;
      ++wrong.size[v.rank - 1];
      // One more size is wrong for every tensor, except for a tensor that alone determines that size.
      CHECK_FALSE(bool(e.set(name.c_str(), wrong)));
      wrong = v, wrong.rank = v.rank == 4 ? 3 : v.rank + 1, wrong.data = junk;
      CHECK_FALSE(bool(e.set(name.c_str(), wrong)));
      wrong = v, wrong.data = nullptr;
      CHECK_FALSE(bool(e.set(name.c_str(), wrong)));
    }
    CHECK_FALSE(bool(e.set("nothing", view_of(junk, 4, 4))));
    CHECK_FALSE(bool(e.set("nothing", 3.0)));
    CHECK_FALSE(bool(e.size("nothing", 3)));
    for (const char* name : {"out", "in", "r", "b", "dim", "n"})
      if (c.graphs.literal.sizes.find(name) >= 0) CHECK_FALSE(bool(e.size(name, 1009)));
    CHECK(difference(forward(e, l), before) == 0);
  }
}

TEST_CASE("unchanged: a refused call writes nothing") {
  const layer_graphs g = graphs_for("linear", "lora", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  REQUIRE(bool(l.bind(e)));
  auto untouched = [](const std::vector<float>& v) {
    for (const float x : v)
      if (x != 7) return false;
    return true;
  };
  std::vector<float> y(168, 7), dx(224, 7), dA(128, 7), small(3, 7), w(768, 7);
  CHECK_FALSE(bool(e.forward(view_of(l.data.at("x").data(), 7, 31), into(y))));
  CHECK_FALSE(bool(e.backward(l.x(), l.dy(), into(dx), {{"lora_A.weight", into(dA)}, {"lora_B.weight", into(small)}})));
  CHECK_FALSE(bool(e.backward(l.x(), l.dy(), into(dx), {{"lora_A.weight", into(dA)}, {"lora_C", into(small)}})));
  CHECK_FALSE(bool(e.merge(into(w), into(small))));
  CHECK_FALSE(bool(e.unmerge("weight", view_of(w.data(), 768), into(w))));
  for (const auto* v : {&y, &dx, &dA, &small, &w}) CHECK(untouched(*v));
}

TEST_CASE("unchanged: a refused merge leaves the saved tensors of the last merge") {
  const layer_graphs g = graphs_for("linear", "dora", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  REQUIRE(bool(l.bind(e)));
  std::vector<float> merged(768), back(768), small(3);
  REQUIRE(bool(e.merge(into(merged))));
  CHECK_FALSE(bool(e.merge(into(small))));
  REQUIRE(bool(e.unmerge("weight", view_of(merged.data(), 24, 32), into(back))));
  CHECK(difference(back, l.data.at("weight")) < 1e-5);
}

TEST_CASE("unchanged: a gradient that is not requested is not computed for the others") {
  const layer_graphs g = graphs_for("linear", "lora", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  REQUIRE(bool(l.bind(e)));
  std::vector<float> all = l.buffer_for("lora_A.weight", g.backward), b = l.buffer_for("lora_B.weight", g.backward),
                     alone = all;
  std::vector<float> dx = l.buffer_for("dx", g.backward);
  REQUIRE(bool(e.backward(l.x(), l.dy(), into(dx), {{"lora_A.weight", into(all)}, {"lora_B.weight", into(b)}})));
  REQUIRE(bool(e.backward(l.x(), l.dy(), {}, {{"lora_A.weight", into(alone)}})));
  CHECK(difference(alone, all) == 0);
}
