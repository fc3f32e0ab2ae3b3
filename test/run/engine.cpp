// SPDX-License-Identifier: Apache-2.0
// Layers and blocks on an engine that knows nothing but the concept: they compute the same there, plan every graph
// once, and ask for launches and memory only where they say so.
#include <doctest/doctest.h>
#include <graft/adapter/lora.h>
#include <graft/block/llama.h>
#include <graft/plan/fuse_products.h>
#include <graft/run/executor_impl.h>

#include <deque>

#include "../support/counting_engine.h"
#include "../support/gpu_target.h"
#include "../support/instances.h"
#include "../support/random_block.h"
#include "../support/random_layer.h"

using namespace test;

namespace {

int plans = 0;
target counts_plans(const target& like) {
  target to = like;
  to.fuse_products = [](const graft::detail::planner& m) { ++plans, fuse_products(m); };
  return to;
}
counting_engine::queue queue_of(engine_counts& n, const target& to) {
  return {.evaluates = {.has = cpu::every_operation<double>()}, .count = &n, .to = &to};
}
using layer_on_engine = executor<counting_engine>;

}  // namespace

TEST_CASE("engine: a bind plans each graph once") {
  static const target to = counts_plans(gpu_target);
  for (const char* method : {"lora", "dora", "oft", "lokr"})
    for (const bool more : {false, true}) {
      INFO(method);
      engine_counts n;
      const random_layer<double> l(graphs_for("linear", method, false), usual_sizes());
      layer_on_engine e(l.graphs, execution_mode::fused, queue_of(n, to));
      REQUIRE(bool(l.bind(e)));
      if (more) {
        const result<int> second = e.add(l.graphs);
        REQUIRE(bool(second));
        REQUIRE(bool(l.bind(e, *second)));
      }
      for (int again = 0; again < 2; ++again) {
        plans = 0;
        REQUIRE(bool(e.bind({.tokens = 16})));
        CHECK(plans == (more ? 5 : 3));  // the base, and each adapter as a branch and in a copy of the weight
      }
      if (!more) continue;
      plans = 0;
      REQUIRE(bool(e.activate({1})));
      CHECK(plans == 0);
    }
}

TEST_CASE("engine: a layer computes on any engine what it does on the CPU") {
  engine_counts n;
  const random_layer<double> l(graphs_for("linear", "dora", true), usual_sizes());
  layer_on_engine e(l.graphs, execution_mode::fused, queue_of(n, cpu_target));
  cpu::executor<double> there(l.graphs);
  REQUIRE(bool(l.bind(e)));
  REQUIRE(bool(l.bind(there)));
  std::vector<double> y = l.buffer_for("y", l.graphs.literal), expected = y;
  REQUIRE(bool(there.forward(l.x(), into(expected))));
  REQUIRE(bool(e.forward(l.x(), into(y))));
  CHECK(difference(y, expected) < 1e-12);
  const engine_counts before = n;
  for (int call = 0; call < 3; ++call) REQUIRE(bool(e.forward(l.x(), into(y))));
  CHECK(n.runs == before.runs + 3);
  CHECK(n.launches == before.launches + 3 * e.forward_plan()->launches.size());
  CHECK(n.binds == before.binds);
  CHECK(n.allocations == before.allocations);

  e.train(true), there.train(true);
  std::vector<double> d = l.buffer_for("lora_A.weight", l.graphs.backward), wanted = d;
  for (int call = 0; call < 2; ++call) {
    REQUIRE(bool(e.forward(l.x(), into(y))));
    REQUIRE(bool(e.backward(l.x(), l.dy(), {}, {{"lora_A.weight", into(d)}})));
  }
  REQUIRE(bool(there.forward(l.x(), into(expected))));
  REQUIRE(bool(there.backward(l.x(), l.dy(), {}, {{"lora_A.weight", into(wanted)}})));
  CHECK(difference(d, wanted) < 1e-12);
  CHECK(n.evaluations == 0);
}

TEST_CASE("engine: equal blocks share a program, and a block saves into memory that is allocated once") {
  engine_counts n;
  block_programs<counting_engine> programs;
  programs.queue = queue_of(n, cpu_target);
  random_block like({block_of<llama>(), {{"*_proj", formula_of<lora<>>()}}, {}}, 9);
  std::deque<bound_block<counting_engine>> blocks;
  for (int k = 0; k < 2; ++k) {
    blocks.emplace_back(programs, like.block.spec(), "layer " + std::to_string(k));
    blocks.back().values = like.block.values;
    for (const pass_kind w : {pass_kind::forward, pass_kind::forward_saved, pass_kind::backward})
      like.must(blocks.back().bind(w, {9}));
  }
  CHECK(programs.count() == 3);
  CHECK(n.binds == 6);
  const int allocated = n.allocations;
  CHECK(allocated > 0);
  const std::vector<double> expected = like.forward();
  like.y.assign(like.y.size(), 0.0);
  for (bound_block<counting_engine>& b : blocks)
    for (const pass_kind w : {pass_kind::forward, pass_kind::forward_saved, pass_kind::backward})
      like.must(b.run(w, like.call()));
  CHECK(difference(like.y, expected) < 1e-12);
  CHECK(n.runs == 6);
  CHECK(n.allocations == allocated);
  CHECK(n.launches == 2 * (programs[0].launches().launches.size() + programs[1].launches().launches.size() +
                           programs[2].launches().launches.size()));
}
