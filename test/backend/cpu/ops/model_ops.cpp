// SPDX-License-Identifier: Apache-2.0
// The elementary operations of models and the gradients that grad() derives, compared with finite differences.
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/node_values.h>
#include <graft/derive/grad.h>
#include <graft/graph/formula.h>

#include <functional>

#include "../../../support/tensors.h"

using namespace test;

namespace {

// y of a small graph, and dx by its backward graph; every leaf except "x" has fixed numbers.
struct trial {
  builder forward, backward;
  std::map<std::string, std::vector<double>> reals;
  std::map<std::string, std::vector<std::int64_t>> integers;

  explicit trial(const std::function<ex(scope)>& make) {
    builder g;
    const scope p{&g};
    g.add_output(make(p).i, "y");
    forward = canonical(g), backward = canonical(grad(g));
  }
  leaf_views leaves(const graph& g) {
    leaf_views all(g.size);
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!is_named(v.what)) continue;
      view& to = all[i];
      const std::string name = g.name(i).c_str();
      if (traits_of(v.what).from == source::integers)
        to = view_of(integers.at(name).data(), static_cast<long long>(integers.at(name).size()));
      else
        to = view_of(reals.at(name).data(), static_cast<long long>(reals.at(name).size()));
    }
    return all;
  }
  std::vector<double> value(const graph& g, const char* name) {
    cpu::values<double> v =
        cpu::evaluate_all<double>(g, {}, leaves(g), cpu::every_operation<double>(), cpu::rotations::blockwise);
    const cpu::tensor<double> t = v[g.result(name)];
    return {t.p, t.p + t.count()};
  }
  void check(const char* input) {
    std::vector<double> y = value(forward, "y");
    const owned<double> t = random_tensor<double>({1, 1, 1, static_cast<long long>(y.size())}, 77);
    reals["dy"] = t.v;
    const std::string name = forward.n[forward.find(input)].what == op::input ? std::string("d") + input : input;
    const std::vector<double> d = value(backward, name.c_str());
    std::vector<double>& x = reals.at(input);
    REQUIRE(d.size() == x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double before = x[i], step = 1e-5;
      double slope = 0;
      for (const double sign : {1.0, -1.0}) {
        x[i] = before + sign * step;
        const std::vector<double> moved = value(forward, "y");
        for (std::size_t k = 0; k < moved.size(); ++k) slope += sign * moved[k] * t.v[k] / (2 * step);
      }
      x[i] = before;
      CHECK(d[i] == doctest::Approx(slope).epsilon(1e-6).scale(1));
    }
  }
};
std::vector<double> random(long long n, unsigned seed) { return random_tensor<double>({1, 1, 1, n}, seed).v; }
ex input(scope p, int rows, int cols) { return p.leaf(op::input, "x", 2, 1, 1, rows, cols); }
ex ids(scope p, const char* name, int n) { return p.leaf(op::ids, name, 1, 1, 1, 1, n); }

}  // namespace

TEST_CASE("rope: pairs are the halves of a head, and the gradient is the transpose") {
  trial t([](scope p) {
    const ex angles = p.frozen("turn", 3, 6);
    return ex{p.g, make_node::rope(*p.g, input(p, 3, 12).i, angles.i, false)};
  });
  t.reals = {{"x", random(36, 1)}, {"turn", random(18, 2)}};
  t.check("x");
  t.reals["turn"] = {0.6, 1, 1, 0.8, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0};
  t.reals["x"].assign(36, 0.0);
  t.reals["x"][0] = 2, t.reals["x"][3] = 5;  // the first pair of the first head of the first row
  const std::vector<double> y = t.value(t.forward, "y");
  CHECK(y[0] == doctest::Approx(2 * 0.6 - 5 * 0.8));
  CHECK(y[3] == doctest::Approx(5 * 0.6 + 2 * 0.8));
}

TEST_CASE("attention: its gradient inside a graph") {
  trial t([](scope p) {
    const ex ranges = p.leaf(op::ids, "attention_range", 2, 1, 1, 3, 4);
    return ex{p.g, make_node::attention(*p.g, (2.0 * input(p, 4, 8)).i, ranges.i, none_id, {4}, {2})};
  });
  t.reals = {{"x", random(32, 3)}};
  t.integers = {{"attention_range", {0, 0, 0, 3, 1, 2, 3, 4, 0, 1, 2, 3}}};
  t.check("x");
}

TEST_CASE("cross entropy: the mean of counted labels, and its gradient") {
  trial t([](scope p) { return ex{p.g, make_node::cross_entropy(*p.g, input(p, 3, 19).i, ids(p, "labels", 3).i)}; });
  t.reals = {{"x", random(57, 4)}};
  t.integers = {{"labels", {2, -100, 18}}};
  const std::vector<double> y = t.value(t.forward, "y");
  double total = 0;
  for (std::size_t c = 0; c < 19; ++c) total += std::exp(t.reals["x"][c]);
  CHECK(y[0] == doctest::Approx(std::log(total) - t.reals["x"][2]));
  CHECK(y[1] == 0);
  t.check("x");
}

TEST_CASE("dropout: the same elements forward and backward, at the given rate, with the mean preserved") {
  trial t([](scope p) {
    return ex{p.g, make_node::dropout(*p.g, input(p, 10, 400).i, ids(p, "seed", 1).i, p.scalar("rate").i, {5})};
  });
  t.reals = {{"x", std::vector<double>(4000, 1.0)}, {"rate", {0.25}}, {"dy", std::vector<double>(4000, 1.0)}};
  t.integers = {{"seed", {42}}};
  const std::vector<double> y = t.value(t.forward, "y");
  CHECK(t.value(t.backward, "dx") == y);
  double sum = 0;
  for (const double v : y) {
    CHECK((v == 0 || v == doctest::Approx(1 / 0.75)));
    sum += v;
  }
  CHECK(sum / 4000 == doctest::Approx(1).epsilon(0.05));
  t.integers = {{"seed", {43}}};
  CHECK(t.value(t.forward, "y") != y);
  t.reals["rate"] = {0.0};
  CHECK(t.value(t.forward, "y") == t.reals["x"]);
}

TEST_CASE("tied weights: a leaf read as a table and as a matrix has one gradient, the sum of both") {
  trial t([](scope p) {
    const ex W = p.param("W", 5, 3);
    const ex rows{p.g, make_node::gather(*p.g, W.i, ids(p, "x", 4).i, false)};
    return rows * graft::t(W);
  });
  t.reals = {{"W", random(15, 6)}};
  t.integers = {{"x", {4, 0, 4, 2}}};
  t.check("W");
}
