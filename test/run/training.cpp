// SPDX-License-Identifier: Apache-2.0
// Training: saved tensors do not change results, gradients that were not requested are not computed, and a backward
// call that does not follow its forward call is refused.
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/derive/reassociate_wgrads.h>
#include <graft/run/program.h>

#include <utility>

#include "../support/random_layer.h"

using namespace test;

namespace {

struct gradients_of {
  std::vector<float> y;
  std::map<std::string, std::vector<float>> d;
};
std::vector<gradient> wanted(const random_layer<float>& l, gradients_of& r) {
  std::vector<gradient> all;
  for (const std::string& p : l.parameters()) {
    r.d[p] = l.buffer_for(p.c_str(), l.graphs.backward);
    all.push_back({p, into(r.d[p])});
  }
  return all;
}
gradients_of forward_backward(const random_layer<float>& l, cpu::executor<float>& e) {
  gradients_of r;
  r.y = l.buffer_for("y", l.graphs.literal);
  const status f = e.forward(l.x(), into(r.y));
  INFO(std::string(f.message()));
  REQUIRE(bool(f));
  if (l.graphs.backward.outs == 0) return r;
  const std::vector<gradient> all = wanted(l, r);
  mutable_view dx{};
  if (l.graphs.backward.find_output("dx") >= 0) {
    r.d["dx"] = l.buffer_for("dx", l.graphs.backward);
    dx = into(r.d["dx"]);
  }
  const status b = e.backward(l.x(), l.dy(), dx, all);
  INFO(std::string(b.message()));
  REQUIRE(bool(b));
  return r;
}
sizes with_tokens(long long n) {
  sizes s = usual_sizes();
  s["tokens"] = n;
  return s;
}
void check_gradients(const gradients_of& found, const gradients_of& expected) {
  for (const auto& [name, d] : expected.d) {
    const std::string of = name;
    INFO("gradient of ", of);
    CHECK(difference(found.d.at(of), d) < 2e-5);
  }
}
// Checks that other graphs of the passes give the results of the layer's usual graphs.
void check_same(const layer_variant& c, const layer_graphs& graphs, long long tokens, double y_tolerance) {
  const random_layer<float> l(c.graphs, with_tokens(tokens));
  cpu::executor<float> usual(l.graphs), other(graphs);
  REQUIRE(bool(l.bind(usual)));
  REQUIRE(bool(l.bind(other)));
  INFO(c.name, ", ", tokens, " tokens");
  const gradients_of expected = forward_backward(l, usual), found = forward_backward(l, other);
  CHECK(difference(found.y, expected.y) < y_tolerance);
  check_gradients(found, expected);
}

}  // namespace

TEST_CASE("training: saved tensors do not change the results, for every adapter and kind of layer") {
  for (const long long n : {1LL, 9LL, 600LL})
    for (const layer_variant& c : every_layer_variant()) {
      if (n == 9 && c.bias) continue;
      const random_layer<float> l(c.graphs, with_tokens(n));
      cpu::executor<float> plain(l.graphs), keeping(l.graphs);
      REQUIRE(bool(l.bind(plain)));
      REQUIRE(bool(l.bind(keeping)));
      keeping.train(true);
      INFO(c.name, ", ", n, " tokens");
      const gradients_of expected = forward_backward(l, plain);
      for (int step = 0; step < 2; ++step) {  // the second step reuses the memory of the first
        const gradients_of found = forward_backward(l, keeping);
        CHECK(difference(found.y, expected.y) < 2e-6);
        check_gradients(found, expected);
      }
    }
}

TEST_CASE("training: applying every factor to the rows gives the same results, for every adapter") {
  for (const long long n : {1LL, 9LL, 600LL})
    for (const layer_variant& c : every_layer_variant()) {
      if (n != 9 && c.bias) continue;
      layer_graphs by_rows = c.graphs;
      const builder forward = capture_forward_by_rows(c.graphs.from),
                    backward = capture_backward_by_rows(c.graphs.from);
      by_rows.forward = forward, by_rows.backward = backward, by_rows.folded = by_rows.forward;
      check_same(c, by_rows, n, 2e-6);
    }
}

TEST_CASE("training: folding the adapter into a copy of the weight gives the same results, for every adapter") {
  for (const layer_variant& c : every_layer_variant()) {
    if (c.bias || c.graphs.from.adapter.input_gradient_weight != nullptr) continue;
    layer_graphs folded = c.graphs;
    const builder forward = capture_forward_folded(c.graphs.from), backward = capture_backward_folded(c.graphs.from);
    folded.forward = forward, folded.backward = backward, folded.folded = folded.forward;
    check_same(c, folded, 9, 5e-6);
  }
}

TEST_CASE("training: reassociated wgrads give the same results, for every adapter") {
  for (const layer_variant& c : every_layer_variant()) {
    layer_graphs first = c.graphs;
    const builder backward = reassociate_wgrads(capture_backward(c.graphs.from));
    first.backward = backward;
    check_same(c, first, 9, 2e-6);
  }
}

namespace {
random_layer<float> randlora_with(sizes& s) {
  s["in"] = s["out"] = 256, s["r"] = 16, s["num_bases"] = 16;
  return {graphs_for("linear", "randlora", false), s};
}
}  // namespace

TEST_CASE("training: wgrads are reassociated for fewer rows than the weight has, and not for more") {
  sizes s = with_tokens(1);
  const random_layer<float> l = randlora_with(s);
  for (const long long tokens : {128LL, 1024LL}) {
    cpu::executor<float> e(l.graphs);
    REQUIRE(bool(l.bind(e)));
    e.train(true);
    s["tokens"] = tokens;
    const random_layer<float> x(l.graphs, s);
    gradients_of r;
    r.y = x.buffer_for("y", l.graphs.literal);
    REQUIRE(bool(e.forward(x.x(), into(r.y))));
    REQUIRE(bool(e.backward(x.x(), x.dy(), {}, wanted(x, r))));
    const graph& g = e.bound_backward()->g();
    bool sums_whole = false;  // dyᵀ x, as large as the weight
    for (id i = 0; i < g.size; ++i)
      if (g[i].what == op::matmul && g[i].ta)
        sums_whole = sums_whole || (is_leaf(g[g[i].a].what) && is_leaf(g[g[i].b].what));
    INFO(tokens);
    CHECK(sums_whole == (tokens == 1024));
  }
}

TEST_CASE("training: for few rows the factors are applied to the rows, for many to the weight") {
  sizes s = with_tokens(1);
  const random_layer<float> l = randlora_with(s);
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  e.train(true);
  const auto largest_precomputed = [&](long long tokens) {  // of the values that depend on parameters alone
    sizes with = s;
    with["tokens"] = tokens;
    const random_layer<float> x(l.graphs, with);
    std::vector<float> y = x.buffer_for("y", l.graphs.literal);
    REQUIRE(bool(e.forward(x.x(), into(y))));
    const auto* const runs = std::as_const(e).bound_forward();
    const graph& g = runs->g();
    const stages when = schedule(g);
    long long most = 0;
    for (id i = 0; i < g.size; ++i)
      if (when.of[i] == stage::parameter && !is_leaf(g[i].what))
        most = std::max(most, element_count(g, i, runs->in->this_call().sizes));
    return most;
  };
  CHECK(largest_precomputed(1) < 256 * 256);
  CHECK(largest_precomputed(4096) == 256 * 256);
}

TEST_CASE("training: a gradient that is requested alone equals the one computed with all others") {
  for (const char* method : {"lora", "dora", "ia3", "adalora", "oft", "lokr"})
    for (const bool keeps : {false, true}) {
      const random_layer<float> l(graphs_for("linear", method, false), with_tokens(9));
      cpu::executor<float> e(l.graphs);
      REQUIRE(bool(l.bind(e)));
      e.train(keeps);
      INFO(method);
      const gradients_of all = forward_backward(l, e);
      for (const std::string& p : l.parameters()) {
        std::vector<float> alone = l.buffer_for(p.c_str(), l.graphs.backward);
        const status s = e.backward(l.x(), l.dy(), {}, {{p, into(alone)}});
        INFO(p, ": ", std::string(s.message()));
        REQUIRE(bool(s));
        CHECK(difference(alone, all.d.at(p)) < 1e-6);
      }
    }
}

TEST_CASE("training: gradients that were not requested are not computed") {
  const random_layer<float> l(graphs_for("linear", "lora", false), with_tokens(9));
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  gradients_of r = forward_backward(l, e);
  const auto products = [&] {
    int n = 0;
    for (const id i : e.bound_backward()->in->launches().nodes) n += e.bound_backward()->g()[i].what == op::matmul;
    return n;
  };
  CHECK(products() == 6);  // two of them are dx: dy W and (dy B) A
  REQUIRE(bool(e.backward(l.x(), l.dy(), {}, {{"lora_B.weight", into(r.d["lora_B.weight"])}})));
  CHECK(products() == 2);  // x A' and its product with dy'
  e.train(true);
  REQUIRE(bool(e.forward(l.x(), into(r.y))));
  REQUIRE(bool(e.backward(l.x(), l.dy(), {}, {{"lora_B.weight", into(r.d["lora_B.weight"])}})));
  CHECK(products() == 1);
}

TEST_CASE("training: bytes of saved tensors, and which calls must follow each other") {
  sizes s = with_tokens(9);
  s["out"] = 48, s["r"] = 4;
  const random_layer<float> l(graphs_for("linear", "lora", false), s), d(graphs_for("linear", "ia3", false), s);
  cpu::executor<float> e(l.graphs), scaled(d.graphs);
  REQUIRE(bool(l.bind(e)));
  REQUIRE(bool(d.bind(scaled)));
  CHECK(e.saved_bytes(512) == 0);
  e.train(true), scaled.train(true);
  CHECK(e.saved_bytes(512) == 512 * 4 * 4);        // x A'
  CHECK(scaled.saved_bytes(512) == 512 * 48 * 4);  // x W'
  gradients_of r;
  const std::vector<gradient> all = wanted(l, r);
  r.y = l.buffer_for("y", l.graphs.literal);
  auto message = [&] { return std::string(e.backward(l.x(), l.dy(), {}, all).message()); };
  CHECK(message().find("call forward() first") != std::string::npos);
  REQUIRE(bool(e.forward(l.x(), into(r.y))));
  CHECK(message().empty());
  REQUIRE(bool(e.parameters_changed()));
  CHECK(message().find("call forward() first") != std::string::npos);
  e.train(false);
  CHECK(message().empty());
}
TEST_CASE("training: a gradient is accumulated into memory of any type and strides") {
  const random_layer<float> l(graphs_for("linear", "dora", false), usual_sizes());
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  std::vector<float> plain = l.buffer_for("lora_A.weight", l.graphs.backward),
                     b = l.buffer_for("lora_B.weight", l.graphs.backward);
  REQUIRE(bool(e.backward(l.x(), l.dy(), {}, {{"lora_A.weight", into(plain)}, {"lora_B.weight", into(b)}})));
  const long long rows = l.views.at("lora_A.weight").size[0], cols = l.views.at("lora_A.weight").size[1];
  std::vector<double> wide(static_cast<std::size_t>(rows * (cols + 3)), 2.0);
  std::vector<float> sum(b.size(), 1.0F);
  const mutable_view with_gaps{wide.data(), dtype::f64, {rows, cols}, 2, {cols + 3, 1}};
  for (int i = 0; i < 2; ++i)
    REQUIRE(
        bool(e.backward(l.x(), l.dy(), {}, {{"lora_A.weight", with_gaps, true}, {"lora_B.weight", into(sum), true}})));
  for (long long r = 0; r < rows; ++r)
    for (long long c = 0; c < cols + 3; ++c) {
      const double expected = c < cols ? 2 + 2.0 * plain[static_cast<std::size_t>(r * cols + c)] : 2;
      CHECK(wide[static_cast<std::size_t>(r * (cols + 3) + c)] == doctest::Approx(expected));
    }
  for (std::size_t i = 0; i < b.size(); ++i) CHECK(sum[i] == doctest::Approx(1 + 2 * b[i]));
}
