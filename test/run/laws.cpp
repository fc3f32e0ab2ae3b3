// SPDX-License-Identifier: Apache-2.0
// The laws that every adapter obeys, tested for every method, kind of layer, bias and set of sizes without naming one:
// merge(W) x = forward(x); unmerge(merge(W)) = W; disabled = base; fused = eager; gradients = differences.
#include <doctest/doctest.h>

#include "../support/instances.h"
#include "../support/random_layer.h"

using namespace test;

namespace {

template <class F> void for_all(F f) {
  for (const layer_variant& c : every_layer_variant())
    for (const sizes& s : {usual_sizes(), ragged_sizes()}) {
      if (c.what == "miss_bat" && s.at("out") % s.at("r") != 0) continue;  // the formula requires whole blocks
      INFO(c.name, ", in ", s.at("in"));
      f(c, s);
    }
}
template <class Real> std::vector<Real> forward(cpu::executor<Real>& e, const random_layer<Real>& l) {
  auto y = l.buffer_for("y", l.graphs.literal);
  const status s = e.forward(l.x(), into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  return y;
}

}  // namespace

TEST_CASE("merge: the base layer with the merged weight equals the adapted layer") {
  for_all([](const layer_variant& c, const sizes& s) {
    const random_layer<double> l(c.graphs, s);
    cpu::executor<double> adapted(c.graphs), base(graphs_for(c.kind.c_str(), "none", c.bias));
    REQUIRE(bool(l.bind(adapted)));
    std::vector<double> weight = l.data.at("weight"), bias = c.bias ? l.data.at("bias") : std::vector<double>{};
    const bool bias_too = c.graphs.merge.result("bias") >= 0;
    if (bias_too && !c.bias) return;  // lora_bias cannot be merged without a base bias
    REQUIRE(bool(adapted.merge(into(weight), bias_too ? into(bias) : mutable_view{})));
    random_layer<double> merged(graphs_for(c.kind.c_str(), "none", c.bias), s);
    for (auto& [name, v] : merged.views) v = l.views.at(name);
    merged.views["weight"].data = weight.data();
    if (c.bias) merged.views["bias"].data = bias.data();
    REQUIRE(bool(merged.bind(base)));
    CHECK(difference(forward(base, merged), forward(adapted, l)) < 1e-10);
  });
}

TEST_CASE("unmerge: restores the base weight") {
  for_all([](const layer_variant& c, const sizes& s) {
    if (!c.graphs.unmerging.weight) return;
    const random_layer<double> l(c.graphs, s);
    cpu::executor<double> e(c.graphs);
    REQUIRE(bool(l.bind(e)));
    std::vector<double> merged = l.data.at("weight"), back = l.buffer_for("weight", c.graphs.merge);
    REQUIRE(bool(e.merge(into(merged))));
    view m = l.views.at("weight");
    m.data = merged.data();
    const status u = e.unmerge("weight", m, into(back));
    INFO(std::string(u.message()));
    REQUIRE(bool(u));
    CHECK(difference(back, l.data.at("weight")) < 1e-9);
  });
}

TEST_CASE("disable: a disabled adapter leaves the base layer") {
  for_all([](const layer_variant& c, const sizes& s) {
    const random_layer<float> l(c.graphs, s);
    cpu::executor<float> e(c.graphs), base(graphs_for(c.kind.c_str(), "none", c.bias));
    REQUIRE(bool(l.bind(e)));
    random_layer<float> bare(graphs_for(c.kind.c_str(), "none", c.bias), s);
    for (auto& [name, v] : bare.views) v = l.views.at(name);
    REQUIRE(bool(bare.bind(base)));
    const auto adapted = forward(e, l);
    REQUIRE(bool(e.enable(false)));
    CHECK(difference(forward(e, l), forward(base, bare)) == 0);
    REQUIRE(bool(e.enable(true)));
    CHECK(difference(forward(e, l), adapted) == 0);
  });
}

TEST_CASE("fused equals eager, forward and backward") {
  for_all([](const layer_variant& c, const sizes& s) {
    const random_layer<float> l(c.graphs, s);
    cpu::executor<float> fused(c.graphs), eager(c.graphs, execution_mode::eager);
    REQUIRE(bool(l.bind(fused)));
    REQUIRE(bool(l.bind(eager)));
    CHECK(difference(forward(fused, l), forward(eager, l)) < 2e-5);
    if (c.graphs.backward.outs == 0) return;  // a bare embedding has no gradients
    std::map<std::string, std::vector<float>> ours, theirs;
    for (auto* e : {&fused, &eager}) {
      auto& to = e == &fused ? ours : theirs;
      std::vector<gradient> wanted;
      for (const std::string& p : l.parameters()) {
        to[p] = l.buffer_for(p.c_str(), c.graphs.backward);
        wanted.push_back({p, into(to[p])});
      }
      mutable_view dx{};
      if (c.kind != "embedding") {
        to["dx"] = l.buffer_for("dx", c.graphs.backward);
        dx = into(to["dx"]);
      }
      const status b = e->backward(l.x(), l.dy(), dx, wanted);
      INFO(std::string(b.message()));
      REQUIRE(bool(b));
    }
    for (const auto& ours_of : ours) {
      INFO("gradient of ", ours_of.first);
      CHECK(difference(ours_of.second, theirs.at(ours_of.first)) < 5e-5);
    }
  });
}

namespace {

// Σ y ⊙ dy of the literal graph, with the detached values of the unperturbed run.
double loss(const random_layer<double>& l, const cpu::pins<double>& pinned, cpu::pins<double>* record) {
  const graph& g = l.graphs.literal;
  const size_values s = values_of(g, l.shape);
  leaf_views leaves(g.size);
  for (int k = 0; k < g.size; ++k) {
    const node& v = g.n[k];
    if (const auto found = l.scalars.find(v.name); v.what == op::scalar)
      leaves[k] = view_of(&found->second, 1);
    else if (const auto tensor = l.views.find(v.name); is_leaf(v.what) && tensor != l.views.end())
      leaves[k] = tensor->second;
  }
  auto v =
      cpu::evaluate_all<double>(g, s, leaves, cpu::every_operation<double>(), cpu::rotations::dense, nullptr, &pinned);
  if (record != nullptr)
    for (int k = 0; k < g.size; ++k)
      if (g.n[k].what == op::detach) {
        const auto t = v[static_cast<id>(k)];
        (*record)[static_cast<id>(k)].assign(t.p, t.p + t.count());
      }
  const auto y = v[g.result("y")];
  double sum = 0;
  for (long long i = 0; i < y.count(); ++i) sum += y.p[i] * l.data.at("dy")[static_cast<std::size_t>(i)];
  return sum;
}

}  // namespace

TEST_CASE("gradients are the derivatives of the formula: central differences in double") {
  constexpr double eps = 1e-6, absolute = 1e-5, relative = 1e-3;
  for (const layer_variant& c : every_layer_variant()) {
    if (c.graphs.backward.outs == 0) continue;
    INFO(c.name);
    random_layer<double> l(c.graphs, usual_sizes());
    cpu::executor<double> e(c.graphs);
    REQUIRE(bool(l.bind(e)));
    std::map<std::string, std::vector<double>> found;
    std::vector<gradient> wanted;
    for (const std::string& p : l.parameters()) {
      found[p] = l.buffer_for(p.c_str(), c.graphs.backward);
      wanted.push_back({p, into(found[p])});
    }
    mutable_view dx{};
    // C3A's dx uses another weight than its forward, as in PEFT, so only the parameters' gradients are derivatives.
    if (c.kind != "embedding" && c.graphs.from.adapter.input_gradient_weight == nullptr) {
      found["x"] = l.buffer_for("dx", c.graphs.backward);
      dx = into(found["x"]);
    }
    REQUIRE(bool(e.backward(l.x(), l.dy(), dx, wanted)));
    cpu::pins<double> pinned;
    loss(l, {}, &pinned);
    for (const auto& entry : found) {
      const std::string& name = entry.first;
      const std::vector<double>& g = entry.second;
      auto& leaf = l.data.at(name);
      const std::size_t stride = leaf.size() / 40 + 1;  // a sample of the elements
      for (std::size_t i = 0; i < leaf.size(); i += stride) {
        const double at = leaf[i];
        leaf[i] = at + eps;
        const double above = loss(l, pinned, nullptr);
        leaf[i] = at - eps;
        const double below = loss(l, pinned, nullptr);
        leaf[i] = at;
        const double expected = (above - below) / (2 * eps);
        INFO("d", name, "[", i, "] is ", g[i], ", differences give ", expected);
        CHECK(std::abs(g[i] - expected) <= absolute + relative * std::abs(expected));
      }
    }
  }
}
