// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel shards of a layer on 2 and 4 ranks give the results of the whole layer: every method, on every kind
// of layer, along both axes of the weight, forward and backward. The ranks are threads of this program.
#include <doctest/doctest.h>
#include <graft/derive/shard.h>

#include <deque>
#include <thread>

#include "../support/instances.h"
#include "../support/random_layer.h"
#include "../support/rank_threads.h"

using namespace test;

namespace {

struct results {
  std::vector<std::vector<double>> of;  // by output
};

// A rank's shard of a tensor, one element after the other.
std::vector<double> part_of(const std::vector<double>& all, const long long (&d)[4], int axis, int rank, int ranks) {
  std::vector<double> mine;
  long long inner = 1, outer = 1;
  for (int k = 0; k < 4; ++k) (k < axis ? outer : inner) *= d[k];
  for (long long o = 0; o < outer; ++o)
    for (long long i = 0; i < inner / ranks; ++i)
      mine.push_back(all[static_cast<std::size_t>(o * inner + rank * (inner / ranks) + i)]);
  return mine;
}

results evaluate(const graph& g, const random_layer<double>& l, int rank, int ranks, rank_threads* with) {
  sizes shape = l.shape;
  shape[ranks_name] = ranks, shape[rank_name] = rank;
  const size_values s = values_of(g, shape);
  leaf_views leaves(g.size);
  std::deque<std::vector<double>> kept;
  for (id i = 0; i < g.size; ++i) {
    view& to = leaves[i];
    if (g[i].what == op::scalar) {
      to = view_of(&l.scalars.at(g.name(i).c_str()), 1);
    } else if (is_named(g[i].what)) {
      to = l.views.at(g.name(i).c_str());
      if (const int axis = sharded_axis(g, i); axis >= 0) {
        long long d[4];
        for (int k = 0; k < 4; ++k) d[k] = g.sizes.value(g[i].d[k], s) * (k == axis ? ranks : 1);
        kept.push_back(part_of(l.data.at(g.name(i).c_str()), d, axis, rank, ranks));
        to = view_of(kept.back().data(), kept.back().size());
      }
    }
  }
  const cpu::host_function<double> reduce = [&](const char* operation, cpu::tensor<double> in,
                                                cpu::tensor<double> out) { with->reduce(rank, operation, in, out); };
  cpu::values<double> v =
      cpu::evaluate_all<double>(g, s, leaves, cpu::every_operation<double>(), cpu::rotations::blockwise, &reduce);
  results r;
  for (int k = 0; k < g.outs; ++k) {
    const cpu::tensor<double> t = v[g.out[k].at];
    r.of.emplace_back(t.p, t.p + t.count());
  }
  return r;
}

void compare(const graph& g, const random_layer<double>& l, const char* size, int ranks) {
  const sharded_sizes split_sizes{&size, 1};
  const sharded made = shard(g, split_sizes, values_of(g, l.shape), ranks);
  REQUIRE(made.why.n == 0);
  const results whole = evaluate(g, l, 0, 1, nullptr);
  std::vector<results> parts(static_cast<std::size_t>(ranks));
  rank_threads with(ranks);
  std::vector<std::thread> all;
  for (int r = 0; r < ranks; ++r)
    all.emplace_back([&, r] { parts[static_cast<std::size_t>(r)] = evaluate(made.g, l, r, ranks, &with); });
  for (std::thread& t : all) t.join();
  const graph shared = made.g;
  for (int k = 0; k < g.outs; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const size_values s = values_of(g, l.shape);
    const int axis = sharded_axis(shared, shared.out[k].at);
    long long d[4];
    for (int n = 0; n < 4; ++n) d[n] = g.sizes.value(g[g.out[k].at].d[n], s);
    for (int r = 0; r < ranks; ++r) {
      const std::vector<double> expected = axis < 0 ? whole.of[at] : part_of(whole.of[at], d, axis, r, ranks);
      INFO("output ", std::string(g.output_name(k).c_str()), " of rank ", r);
      CHECK(difference(parts[static_cast<std::size_t>(r)].of[at], expected) < 1e-9);
    }
  }
}

sizes divisible() {
  sizes s = usual_sizes();
  s["vocab"] = 16, s["channels"] = 4, s["out"] = 64, s["dim"] = 32;
  return s;
}
std::vector<const char*> axes_of(const std::string& kind) {
  if (kind == "embedding") return {"vocab", "dim"};
  if (kind == "conv2d") return {"out", "channels"};
  if (kind == "linear") return {"out", "in"};
  return {"n"};
}

}  // namespace

TEST_CASE("shard: the shards of a layer give the results of the whole layer") {
  for (const layer_variant& c : every_layer_variant()) {
    const random_layer<double> l(c.graphs, divisible());
    for (const char* size : axes_of(c.kind))
      for (const int ranks : {2, 4}) {
        INFO(c.name, " along ", std::string(size), " on ", ranks, " ranks");
        compare(c.graphs.forward, l, size, ranks);
        compare(c.graphs.literal, l, size, ranks);
        if (c.graphs.backward.outs > 0) compare(c.graphs.backward, l, size, ranks);
      }
  }
}

TEST_CASE("shard: LoRA needs no collective in forward along the outputs, and one all-reduce along the inputs") {
  const layer_graphs lora = graphs_for("linear", "lora", false);
  auto sums = [&](const graph& g, const char* size) {
    const sharded made = shard(g, {&size, 1}, values_of(g, divisible()), 2);
    int n = 0;
    for (id i = 0; i < made.g.n.size(); ++i) n += traits_of(made.g.n[i].what).kind == op_class::collective ? 1 : 0;
    return n;
  };
  CHECK(sums(lora.forward, "out") == 0);
  CHECK(sums(lora.forward, "in") == 1);
  const layer_graphs dora = graphs_for("linear", "dora", false);
  CHECK(sums(dora.forward, "out") == 0);
  CHECK(sums(dora.forward, "in") == 2);  // the norm, once per parameter change, and y
}

TEST_CASE("shard: a size that ranks do not divide is refused with a sentence") {
  const layer_graphs lora = graphs_for("linear", "lora", false);
  const char* const size = "out";
  const sharded made = shard(lora.forward, {&size, 1}, values_of(lora.forward, divisible()), 5);
  CHECK(std::string(made.why.c_str()) ==
        "out = 64 cannot be divided among 5 ranks; use a number of ranks that divides it");
}
