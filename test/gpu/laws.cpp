// SPDX-License-Identifier: Apache-2.0
// The laws of test/run/laws.cpp on the GPU, in float: for every method on every kind of layer, with no adapter by name.
#include "gpu.h"

using namespace test;

namespace {

constexpr double tolerance = 2e-5;

std::vector<float> to_float(const std::vector<double>& v) { return {v.begin(), v.end()}; }

void obeys(const combination& c, const sizes& shape, backend how) {
  INFO(c.name, std::string(how == backend::eager ? ", eager" : ", fused"));
  const random_layer<float> l = representable(c.graphs, shape, dtype::f32);
  gpu_layer g(c.graphs, dtype::f32, how);
  REQUIRE(bool(l.bind(g)));
  std::vector<float> y = l.room("y", c.graphs.forward);
  status s = g.forward(l.x(), into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  CHECK(difference(y, to_float(reference(l))) < tolerance);
  g.enable(false);
  REQUIRE(bool(g.forward(l.x(), into(y))));
  CHECK(difference(y, to_float(reference(l, false))) < tolerance);
  REQUIRE(c.graphs.base_forward.find("weight") >= 0);

  executor<float> cpu(c.graphs, backend::eager);
  REQUIRE(bool(l.bind(cpu)));
  std::vector<float> theirs = l.data.at("weight"), ours(theirs.size(), NAN), back(theirs.size(), NAN);
  REQUIRE(bool(cpu.merge(into(theirs))));
  s = g.merge(into(ours));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  CHECK(difference(ours, theirs) < tolerance);
  if (!c.graphs.weight_facts.possible) return;
  view from = l.views.at("weight");
  from.data = ours.data();
  REQUIRE(bool(g.unmerge("weight", from, into(back))));
  CHECK(difference(back, l.data.at("weight")) < 2e-4);  // an inverse formula divides by what may be small
}

}  // namespace

TEST_CASE("gpu: every method computes what the formula says, merges, unmerges, and is the base when disabled") {
  if (no_gpu()) return;
  for (const combination& c : every_combination())
    for (const backend how : {backend::fused, backend::eager}) obeys(c, usual_sizes(), how);
}
TEST_CASE("gpu: the same with sizes that are a multiple of nothing") {
  if (no_gpu()) return;
  for (const combination& c : every_combination()) obeys(c, ragged_sizes(), backend::fused);
}
