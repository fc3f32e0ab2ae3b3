// SPDX-License-Identifier: Apache-2.0
// Gradients on the GPU, in float, against central differences of the GPU's results along one direction per tensor, for
// every method on every kind of layer.
#include "gpu.h"

using namespace test;

namespace {

constexpr float usual_step = 1e-2F, step_near_kinks = 1e-3F;
constexpr double tolerance = 1e-2;

double loss(gpu_layer& g, const random_layer<float>& l, const view& x) {
  std::vector<float> y = l.buffer_for("y", l.graphs.literal);
  const status s = g.forward(x, into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * l.data.at("dy")[i];
  return sum;
}
std::vector<float> moved(const std::vector<float>& from, const std::vector<float>& along, float by) {
  std::vector<float> to = from;
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += by * along[i];
  return to;
}
// Compares Σ gradient ⊙ direction with the difference quotient; at(tensor) is the loss with the moved tensor.
template <class At>
void compare(const std::vector<float>& gradient, const std::vector<float>& values, unsigned seed, float step, At at) {
  std::mt19937 engine(seed);
  std::vector<float> along(values.size());
  for (float& v : along) v = (engine() & 1U) != 0 ? 1.0F : -1.0F;
  double expected = 0, norm = 0;
  for (std::size_t i = 0; i < along.size(); ++i) {
    expected += static_cast<double>(gradient[i]) * along[i];
    norm += static_cast<double>(gradient[i]) * gradient[i];
  }
  const double found = (at(moved(values, along, step)) - at(moved(values, along, -step))) / (2 * step);
  INFO("differences give ", found, ", the gradient ", expected);
  CHECK(std::abs(found - expected) <= tolerance * (std::sqrt(norm) + 1e-2));
}
bool has(const graph& g, op what) {
  for (id i = 0; i < g.size; ++i)
    if (g[i].what == what) return true;
  return false;
}
void differentiates(const layer_variant& c) {
  random_layer<float> l(c.graphs, usual_sizes());
  gpu_layer g(c.graphs, dtype::f32, execution_mode::fused);
  REQUIRE(bool(l.bind(g)));
  const std::vector<std::string> parameters = l.parameters();
  std::vector<std::vector<float>> found;
  for (const std::string& p : parameters) found.push_back(l.buffer_for(p.c_str(), c.graphs.backward));
  std::vector<gradient> wanted;
  for (std::size_t i = 0; i < found.size(); ++i) wanted.push_back({parameters[i], into(found[i])});
  std::vector<float> dx;
  const bool moves_x = c.graphs.backward.result("dx") >= 0 && c.graphs.from.adapter.input_gradient_weight == nullptr;
  if (c.graphs.backward.result("dx") >= 0) dx = l.buffer_for("dx", c.graphs.backward);
  const status s = g.backward(l.x(), l.dy(), dx.empty() ? mutable_view{} : into(dx), wanted);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  if (moves_x)
    compare(dx, l.data.at("x"), 3, usual_step, [&](const std::vector<float>& at) {
      view x = l.x();
      x.data = at.data();
      return loss(g, l, x);
    });
  if (has(c.graphs.literal, op::detach)) return;  // detach makes the gradients differ from the derivatives
  const float step = has(c.graphs.literal, op::relu) ? step_near_kinks : usual_step;
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO(parameters[i]);
    compare(found[i], l.data.at(parameters[i]), 5, step, [&](const std::vector<float>& at) {
      view v = l.views.at(parameters[i]);
      v.data = at.data();
      REQUIRE(bool(g.overwrite(parameters[i].c_str(), v)));
      REQUIRE(bool(g.parameters_changed()));
      return loss(g, l, l.x());
    });
    REQUIRE(bool(g.overwrite(parameters[i].c_str(), l.views.at(parameters[i]))));
  }
}

}  // namespace

TEST_CASE("gpu: gradients agree with finite differences in float") {
  if (no_gpu()) return;
  for (const layer_variant& c : every_layer_variant()) {
    if (c.graphs.backward.outs == 0 || c.graphs.backward.bad.what != formula_error::none) continue;
    INFO(c.name);
    differentiates(c);
  }
}
