// SPDX-License-Identifier: Apache-2.0
// The laws of test/run/laws.cpp on the GPU, in float, for every method on every kind of layer. The number of launches
// must be that of the plan.
#include "gpu.h"

using namespace test;

namespace {

constexpr double tolerance = 2e-5;

void differentiates(const layer_variant& c, const random_layer<float>& l, gpu_layer& g) {
  if (c.graphs.backward.bad.what != formula_error::none) return;
  cpu::executor<float> cpu(c.graphs, execution_mode::eager);
  REQUIRE(bool(l.bind(cpu)));
  const bool has_dx = c.graphs.backward.result("dx") >= 0;
  std::vector<float> dx, theirs_dx;
  if (has_dx) dx = theirs_dx = l.buffer_for("dx", c.graphs.backward);
  std::vector<std::vector<float>> ours, theirs;
  std::vector<gradient> into_ours, into_theirs;
  for (const std::string& name : l.parameters()) ours.push_back(l.buffer_for(name.c_str(), c.graphs.backward));
  theirs = ours;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    into_ours.push_back({l.parameters()[i], into(ours[i])});
    into_theirs.push_back({l.parameters()[i], into(theirs[i])});
  }
  REQUIRE(bool(cpu.backward(l.x(), l.dy(), has_dx ? into(theirs_dx) : mutable_view{}, into_theirs)));
  status s = ok;
  for (int i = 0; s && i < 2; ++i) s = g.backward(l.x(), l.dy(), has_dx ? into(dx) : mutable_view{}, into_ours);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));  // the first call binds the backward pass, the second one only launches it
  CHECK(g.launched() == g.planned(true, tokens_of(c.graphs, l.x())));
  if (has_dx) CHECK(difference(dx, theirs_dx) < 5 * tolerance);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    INFO(l.parameters()[i]);
    CHECK(difference(ours[i], theirs[i]) < 20 * tolerance);
  }
}

void obeys(const layer_variant& c, const sizes& shape, execution_mode how) {
  INFO(c.name, std::string(how == execution_mode::eager ? ", eager" : ", fused"));
  const random_layer<float> l = representable(c.graphs, shape, dtype::f32);
  gpu_layer g(c.graphs, dtype::f32, how);
  REQUIRE(bool(l.bind(g)));
  std::vector<float> y = l.buffer_for("y", c.graphs.forward);
  status s = g.forward(l.x(), into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  CHECK(g.launched() == g.planned(false, tokens_of(c.graphs, l.x())));
  CHECK(difference(y, to_float(reference(l))) < tolerance);
  differentiates(c, l, g);
  REQUIRE(bool(g.enable(false)));
  REQUIRE(bool(g.forward(l.x(), into(y))));
  CHECK(g.launched() == g.planned(false, tokens_of(c.graphs, l.x())));
  CHECK(difference(y, to_float(reference(l, false))) < tolerance);
  REQUIRE(bool(g.enable(true)));
  REQUIRE(c.graphs.base_forward.find("weight") >= 0);

  cpu::executor<float> cpu(c.graphs, execution_mode::eager);
  REQUIRE(bool(l.bind(cpu)));
  std::vector<float> theirs = l.data.at("weight"), ours(theirs.size(), NAN), back(theirs.size(), NAN);
  REQUIRE(bool(cpu.merge(into(theirs))));
  s = g.merge(into(ours));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  CHECK(difference(ours, theirs) < tolerance);
  if (!c.graphs.unmerging.weight) return;
  view from = l.views.at("weight");
  from.data = ours.data();
  REQUIRE(bool(g.unmerge("weight", from, into(back))));
  CHECK(difference(back, l.data.at("weight")) < 2e-4);  // an inverse formula may divide by small numbers
}

struct clipped {
  static constexpr const char* name = "clipped";
  static constexpr ex weight(scope, ex W) { return host("clip", W); }
};

}  // namespace

TEST_CASE("gpu: bind() refuses a graph with a node that no kernel computes, and names it") {
  if (no_gpu()) return;
  const layer_graphs graphs = graphs_of<linear_kind, clipped, false>();
  const random_layer<float> l(graphs, usual_sizes());
  for (const execution_mode how : {execution_mode::fused, execution_mode::eager}) {
    gpu_layer g(graphs, dtype::f32, how);
    REQUIRE(bool(l.bind(g)));
    const status s = g.bind({.tokens = 7});
    CHECK(std::string(s.message()) == "host function 'clip' cannot run on the GPU");
    CHECK(g.bind({.tokens = 7}).message() == std::string(s.message()));
  }
}
TEST_CASE("gpu: every method equals its formula, forward and backward, merges, unmerges and can be disabled") {
  if (no_gpu()) return;
  for (const layer_variant& c : every_layer_variant())
    for (const execution_mode how : {execution_mode::fused, execution_mode::eager}) obeys(c, usual_sizes(), how);
}
TEST_CASE("gpu: the laws with sizes that are no multiple of a tile") {
  if (no_gpu()) return;
  for (const layer_variant& c : every_layer_variant()) obeys(c, ragged_sizes(), execution_mode::fused);
}
