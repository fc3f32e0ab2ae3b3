// SPDX-License-Identifier: Apache-2.0
// Convolutions: a layer is bound before the size of its images is known, and its memory grows with the largest image.
#include "gpu.h"

using namespace test;

namespace {

random_layer<float> with_images(const layer_graphs& g, long long height, long long width) {
  return representable(
      g, with(usual_sizes(), {{"tokens", 3}, {"channels", 8}, {"height", height}, {"width", width}, {"stride", 1}}),
      dtype::f32);
}
// Copies the parameters of a layer, without the tensors of a call.
void take_parameters(random_layer<float>& to, const random_layer<float>& from) {
  for (auto& [name, values] : to.data)
    if (name != "x" && name != "dy") values = from.data.at(name), to.views.at(name).data = values.data();
}

}  // namespace

TEST_CASE("gpu: convolutions on images that grow and shrink, every method") {
  if (no_gpu()) return;
  for (const method& m : built_in_methods()) {
    if (!exists_on(m, "conv2d")) continue;
    INFO(std::string(m.name));
    const layer_graphs graphs = graphs_for("conv2d", m.name, true);
    const random_layer<float> first = with_images(graphs, 6, 5);
    random_layer<float> large = with_images(graphs, 21, 17), wide = with_images(graphs, 4, 30);
    take_parameters(large, first), take_parameters(wide, first);
    gpu_layer g(graphs, dtype::f32, execution_mode::fused);
    REQUIRE(bool(first.bind(g)));
    REQUIRE(bool(g.bind({3})));
    for (const random_layer<float>* l : {&first, static_cast<const random_layer<float>*>(&large), &first,
                                         static_cast<const random_layer<float>*>(&wide)}) {
      INFO(l->shape.at("height"), " x ", l->shape.at("width"));
      std::vector<float> y = l->buffer_for("y", graphs.forward);
      for (int k = 0; k < 2; ++k) {
        const status done = g.forward(l->x(), into(y));
        INFO(std::string(done.message()));
        REQUIRE(bool(done));
        CHECK(distance(y, reference(*l)) < 1e-5);
      }
      random_layer<double> exact(graphs, l->shape);
      for (auto& [name, values] : exact.data)
        std::copy(l->data.at(name).begin(), l->data.at(name).end(), values.begin());
      cpu::executor<double> e(graphs, execution_mode::fused);
      REQUIRE(bool(exact.bind(e)));
      std::vector<double> dx_exact = exact.buffer_for("dx", graphs.backward);
      REQUIRE(bool(e.backward(exact.x(), exact.dy(), into(dx_exact), {})));
      std::vector<float> dx = l->buffer_for("dx", graphs.backward);
      REQUIRE(bool(g.backward(l->x(), l->dy(), into(dx), {})));
      CHECK(distance(dx, dx_exact) < 1e-5);
    }
  }
}
