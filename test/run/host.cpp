// SPDX-License-Identifier: Apache-2.0
// Formulas that the compiler cannot analyse run in eager mode only: host functions, and adapters of erased type.
#include <doctest/doctest.h>
#include <graft/adapter/erased.h>

#include "../support/forward.h"

using namespace test;

namespace {

struct halved {  // W' = f(W) + W
  static constexpr const char* name = "halved";
  static constexpr ex weight(scope, ex W) { return host("halve", W) + W; }
};
struct after_host_function {
  static constexpr const char* name = "behind a host function";
  static constexpr ex weight(scope p, ex W) { return W + host("f", p.param("a", W.rows(), W.cols())); }
};
struct graphs {
  layer_graphs value = graphs_of<linear_kind, halved, false>(), erased_value = graphs_of<linear_kind, erased, false>(),
               plain = graphs_of<linear_kind, none, false>();
};
const graphs& g() {
  static const graphs all;
  return all;
}
void halve(const char* name, cpu::tensor<float> in, cpu::tensor<float> out) {
  REQUIRE(std::string(name) == "halve");
  REQUIRE(in.count() == out.count());
  for (long long i = 0; i < in.count(); ++i) out.p[i] = in.p[i] / 2;
}
std::vector<float> times(std::vector<float> v, float s) {
  for (float& x : v) x *= s;
  return v;
}

}  // namespace

TEST_CASE("host function: runs in eager mode") {
  const random_layer<float> l(g().value, usual_sizes());
  cpu::executor<float> e(g().value, execution_mode::eager), base(g().plain);
  REQUIRE(bool(l.bind(e)));
  REQUIRE(bool(base.set("weight", l.views.at("weight"))));
  e.host(halve);
  CHECK(difference(forward(e, l), times(forward(base, l), 1.5F)) < 1e-6);
}

TEST_CASE("host function: merging calls it as well") {
  const random_layer<float> l(g().value, usual_sizes());
  cpu::executor<float> e(g().value, execution_mode::eager);
  REQUIRE(bool(l.bind(e)));
  e.host(halve);
  std::vector<float> merged(768);
  REQUIRE(bool(e.merge(into(merged))));
  CHECK(difference(merged, times(l.data.at("weight"), 1.5F)) < 1e-6);
}

TEST_CASE("host function: refused in fused mode, and if no function was given") {
  const random_layer<float> l(g().value, usual_sizes());
  std::vector<float> y = l.buffer_for("y", g().value.literal);
  cpu::executor<float> fused(g().value), eager(g().value, execution_mode::eager);
  REQUIRE(bool(l.bind(fused)));
  REQUIRE(bool(l.bind(eager)));
  fused.host(halve);
  CHECK(std::string(fused.forward(l.x(), into(y)).message()) ==
        "host function 'halve' breaks the graph; run the layer in eager mode");
  CHECK(std::string(eager.forward(l.x(), into(y)).message()) ==
        "host function 'halve' is not set; give it with host()");
  REQUIRE(bool(fused.enable(false)));  // the base layer has no graph break
  CHECK(bool(fused.forward(l.x(), into(y))));
}

TEST_CASE("host function: no gradient if a parameter is below it") {
  const layer_graphs b = graphs_of<linear_kind, after_host_function, false>();
  const random_layer<float> l(b, usual_sizes());
  cpu::executor<float> e(b, execution_mode::eager);
  std::vector<float> dx(224);
  const std::string error_text = e.backward(l.x(), l.dy(), into(dx), {}).message();
  CHECK(error_text.starts_with("no gradient for f(a) with a[out, in]"));
}

TEST_CASE("type-erased: an adapter that is a function of W") {
  const random_layer<float> l(g().erased_value, usual_sizes());
  cpu::executor<float> eager(g().erased_value, execution_mode::eager), fused(g().erased_value), base(g().plain);
  REQUIRE(bool(l.bind(eager)));
  REQUIRE(bool(l.bind(fused)));
  REQUIRE(bool(base.set("weight", l.views.at("weight"))));
  int calls = 0;
  eager.host([&](const char* name, cpu::tensor<float> in, cpu::tensor<float> out) {
    CHECK(std::string(name) == "type_erased_adapter");
    CHECK(in.d[2] == 24);
    CHECK(in.d[3] == 32);
    ++calls;
    for (long long i = 0; i < in.count(); ++i) out.p[i] = -2 * in.p[i];
  });
  CHECK(difference(forward(eager, l), times(forward(base, l), -2)) < 1e-6);
  CHECK(calls == 1);
  std::vector<float> y = l.buffer_for("y", g().erased_value.literal), w(768);
  CHECK(std::string(fused.forward(l.x(), into(y)).message()) ==
        "host function 'type_erased_adapter' breaks the graph; run the layer in eager mode");
  CHECK(std::string(eager.unmerge("weight", view_of(w.data(), 24, 32), into(w)).message()) ==
        "the formula cannot be solved for 'weight'; keep a copy of the base tensor");
}
