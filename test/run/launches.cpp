// SPDX-License-Identifier: Apache-2.0
// The CPU runs exactly the launches of the plan, for every method on every kind of layer, forward and backward, fused
// and eager; and the number of kernels that a type states is the number of the run.
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/run/program.h>

#include "../support/all_layers.h"
#include "../support/instances.h"
#include "../support/random_layer.h"

using namespace test;

namespace {

struct counts {
  long long forward = 0, backward = 0;
};
long long launched_forward(cpu::executor<float>& e, const random_layer<float>& l) {
  std::vector<float> y = l.buffer_for("y", l.graphs.literal);
  for (int call = 0; call < 2; ++call) {
    const status s = e.forward(l.x(), into(y));
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
  }
  return e.bound_forward()->in->launched();
}
counts launched(cpu::executor<float>& e, const random_layer<float>& l) {
  counts n{launched_forward(e, l)};
  if (l.graphs.backward.outs == 0) return n;
  std::map<std::string, std::vector<float>> d;
  std::vector<gradient> wanted;
  for (const std::string& p : l.parameters()) {
    d[p] = l.buffer_for(p.c_str(), l.graphs.backward);
    wanted.push_back({p, into(d[p])});
  }
  const bool has_dx = l.graphs.backward.find_output("dx") >= 0;
  if (has_dx) d["dx"] = l.buffer_for("dx", l.graphs.backward);
  const mutable_view dx = has_dx ? into(d["dx"]) : mutable_view{};
  for (int call = 0; call < 2; ++call) REQUIRE(bool(e.backward(l.x(), l.dy(), dx, wanted)));
  n.backward = e.bound_backward()->in->launched();
  return n;
}

}  // namespace

TEST_CASE("launches: every call runs as many as the plan has") {
  for (const layer_variant& c : every_layer_variant())
    for (const execution_mode run_mode : {execution_mode::fused, execution_mode::eager})
      for (const long long tokens : {5LL, 300LL}) {
        sizes s = usual_sizes();
        s["tokens"] = tokens;
        const random_layer<float> l(c.graphs, s);
        cpu::executor<float> e(c.graphs, run_mode);
        REQUIRE(bool(l.bind(e)));
        INFO(c.name, run_mode == execution_mode::fused ? ", fused, " : ", eager, ", tokens);
        const counts n = launched(e, l);
        const bool eager = run_mode == execution_mode::eager;
        const target& to = eager ? eager_target : cpu_target;
        const graph& forward = eager ? c.graphs.literal : e.runs_folded() ? c.graphs.folded : c.graphs.forward;
        CHECK(n.forward == 2 * fuse(forward, to).launches.size());
        CHECK(e.forward_plan()->launches.size() * 2 == n.forward);
        if (c.graphs.backward.outs > 0)
          CHECK(n.backward == 2 * fuse(eager ? c.graphs.literal_backward : c.graphs.backward, to).launches.size());
      }
}

TEST_CASE("launches: the number of kernels of a type is the number that a layer of it launches") {
  int layers = 0;
  for_all_layers([&]<class Layer>(const char* name, layer_tag<Layer>) {
    const layer_graphs g = built_in_methods().graphs(rules_of<typename Layer::kind>(),
                                                     formula_of<typename Layer::adapter>(), Layer::has_bias);
    sizes s{{"tokens", 3}, {"height", 5}, {"width", 5}, {"num_vectors", 256}, {"vector_length", 256}};
    const size_values fixed = static_sizes<Layer>(g.literal), fixed_of_forward = static_sizes<Layer>(g.forward);
    for (int i = 0; i < g.literal.sizes.count; ++i)
      if (const size_entry& e = g.literal.sizes.e[i]; e.index >= 0 && fixed.v[e.index] != unknown)
        s[e.name] = fixed.v[e.index];
    const random_layer<float> l(g, s);
    cpu::executor<float> e(g);
    INFO(std::string(name));
    REQUIRE(bool(l.bind(e)));
    const stated_facts stated = stated_at_run_time<Layer>(g.forward, g.folded);
    CHECK(launched_forward(e, l) == 2 * stated.kernels);
    CHECK(e.runs_folded() ==
          folds(cpu_target, g.forward, g.folded, fixed_of_forward, dtype::f32));  // the weight is stored in float
    ++layers;
  });
  CHECK(layers >= 35);
}
