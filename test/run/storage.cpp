// SPDX-License-Identifier: Apache-2.0
// Element types of inputs and outputs: bf16, float and double in any combination.
#include <doctest/doctest.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

std::vector<bf16> narrowed(const std::vector<double>& v) {
  std::vector<bf16> out;
  for (const double x : v) out.push_back(narrow(static_cast<float>(x)));
  return out;
}
template <class To> std::vector<To> converted(const std::vector<double>& v) { return {v.begin(), v.end()}; }

// || a - b || / || b ||
double relative(const std::vector<bf16>& a, const std::vector<double>& b) {
  double off = 0, all = 1e-300;
  if (a.size() != b.size()) return INFINITY;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(widen(a[i])) - b[i];
    off += d * d, all += b[i] * b[i];
  }
  return std::sqrt(off / all);
}
view retyped(const view& like, const void* data, dtype t) {
  view v = like;
  v.data = data, v.type = t;
  return v;
}
sizes with_tokens(long long n) {
  sizes s = usual_sizes();
  s["tokens"] = n;
  return s;
}

}  // namespace

TEST_CASE("bf16: results with x, W and y in bf16 are within bf16 rounding of double, for every method") {
  for (const layer_variant& c : every_layer_variant())
    for (const long long tokens : {5LL, 300LL}) {
      const random_layer<double> l(c.graphs, with_tokens(tokens));
      INFO(c.name, ", ", tokens, " tokens");
      cpu::executor<double> exact(c.graphs);
      REQUIRE(bool(l.bind(exact)));
      std::vector<double> y = l.buffer_for("y", c.graphs.literal);
      REQUIRE(bool(exact.forward(l.x(), into(y))));

      random_layer<float> f(c.graphs, with_tokens(tokens));
      std::map<std::string, std::vector<float>> wide;
      std::map<std::string, std::vector<bf16>> half;
      for (auto& [name, v] : f.views) {
        if (v.type == dtype::i64) continue;
        const std::vector<double>& from = l.data.at(name);
        if (name == "x" || name == "weight" || name == "bias")
          v = retyped(v, (half[name] = narrowed(from)).data(), dtype::bf16);
        else
          v = retyped(v, (wide[name] = converted<float>(from)).data(), dtype::f32);
      }
      f.ids = l.ids;
      if (c.kind == "embedding") f.views["x"].data = f.ids.data();
      cpu::executor<float> e(c.graphs);
      REQUIRE(bool(f.bind(e)));
      std::vector<bf16> found(y.size());
      const status s = e.forward(f.x(), into(found));
      INFO(std::string(s.message()));
      REQUIRE(bool(s));
      CHECK(relative(found, y) <= 1e-2);
      CHECK(relative(found, y) > 0);
    }
}

TEST_CASE("bf16: gradients of a layer in bf16") {
  for (const layer_variant& c : every_layer_variant()) {
    if (c.graphs.backward.outs == 0 || c.kind == "embedding") continue;
    const random_layer<float> l(c.graphs, with_tokens(100));
    INFO(c.name);
    random_layer<float> b = l;  // W, x and dy are rounded to bf16; one layer stores them in float, the other in bf16
    random_layer<float> w = l;
    std::map<std::string, std::vector<bf16>> half;
    std::map<std::string, std::vector<float>> wide;
    for (const char* name : {"weight", "x", "dy", "bias"}) {
      if (!l.data.contains(name)) continue;
      for (const float v : l.data.at(name)) {
        half[name].push_back(narrow(v));
        wide[name].push_back(widen(half[name].back()));
      }
      b.views[name] = retyped(l.views.at(name), half[name].data(), dtype::bf16);
      w.views[name] = retyped(l.views.at(name), wide[name].data(), dtype::f32);
    }
    for (auto* r : {&b, &w})
      for (auto& [name, v] : r->views)
        if (!half.contains(name)) v.data = l.views.at(name).data;
    cpu::executor<float> narrow_layer(c.graphs), wide_layer(c.graphs);
    REQUIRE(bool(b.bind(narrow_layer)));
    REQUIRE(bool(w.bind(wide_layer)));
    for (const std::string& p : l.parameters()) {
      std::vector<float> d = l.buffer_for(p.c_str(), c.graphs.backward), expected = d;
      REQUIRE(bool(narrow_layer.backward(b.x(), b.dy(), {}, {{p, into(d)}})));
      REQUIRE(bool(wide_layer.backward(w.x(), w.dy(), {}, {{p, into(expected)}})));
      INFO(p);
      CHECK(difference(d, expected) < 1e-4);
    }
  }
}

TEST_CASE("storage: float and double in any combination give the same") {
  const layer_graphs g = graphs_for("linear", "dora", true);
  const random_layer<double> l(g, with_tokens(9));
  cpu::executor<double> exact(g);
  REQUIRE(bool(l.bind(exact)));
  std::vector<double> y = l.buffer_for("y", g.literal);
  REQUIRE(bool(exact.forward(l.x(), into(y))));
  std::map<std::string, std::vector<float>> single;
  for (const auto& [name, v] : l.data) single[name] = converted<float>(v);
  for (int mask = 0; mask < 16; ++mask) {
    cpu::executor<float> e(g);
    REQUIRE(bool(e.set("scaling", 0.7)));
    int at = 0;
    view x{};
    for (const auto& [name, v] : l.views) {
      if (name == "dy") continue;
      const bool wide = (mask >> (at++ % 4) & 1) != 0;
      const view u = wide ? v : retyped(v, single.at(name).data(), dtype::f32);
      if (name == "x")
        x = u;
      else
        REQUIRE(bool(e.set(name.c_str(), u)));
    }
    std::vector<double> found = l.buffer_for("y", g.literal);
    REQUIRE(bool(e.forward(x, into(found))));  // and the result into double
    CHECK(difference(found, y) < 1e-5);
  }
}

TEST_CASE("storage: merging into bf16 and float, and unmerging") {
  const layer_graphs g = graphs_for("linear", "lora", false);
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g);
  REQUIRE(bool(l.bind(e)));
  std::vector<float> merged(768);
  std::vector<bf16> narrow_merged(768);
  std::vector<double> wide(768);
  REQUIRE(bool(e.merge(into(merged))));
  REQUIRE(bool(e.merge(into(narrow_merged))));
  REQUIRE(bool(e.merge(into(wide))));
  for (std::size_t i = 0; i < merged.size(); ++i) {
    CHECK(narrow_merged[i].bits == narrow(merged[i]).bits);  // a single rounding
    CHECK(wide[i] == static_cast<double>(merged[i]));
  }
  std::vector<float> back(768);
  REQUIRE(bool(e.unmerge("weight", view_of(narrow_merged.data(), 24, 32), into(back))));
  CHECK(difference(back, l.data.at("weight")) < 1e-2);
}
