// SPDX-License-Identifier: Apache-2.0
// Runs every adapter in a loop without code for any of them: the loop finds the tensors of each layer in its graph,
// fills them with random numbers, and runs the layer twice. `eager` evaluates the formula as written, one operation
// after the other, and computes W'; `fused` runs the kernels of the derived plan.
#include <cstdio>

#include "random_tensors.h"

template <class Layer> bool agrees() {
  using derived = graft::derived_of<Layer>;
  constexpr long long tokens = 32;
  const random_tensors<Layer> numbers(
      {{"tokens", tokens}, {"height", 8}, {"width", 8}, {"num_vectors", 24}, {"vector_length", 16}});

  // These options are checked at compile time: the graph is fused, and every parameter has a gradient.
  graft::cpu::layer<Layer, graft::fullgraph, graft::training> fused, eager(graft::execution_mode::eager);
  std::vector<float> y(numbers.outputs()), expected(numbers.outputs());
  for (const graft::status& s : {numbers.bind(fused), fused.forward(numbers.x(), whole(y)),  //
                                 numbers.bind(eager), eager.forward(numbers.x(), whole(expected))})
    if (!s) return std::printf("%-22s %s\n", Layer::adapter::name, s.message()), false;
  const double error = relative_error(y, expected);

  // If the low-rank branch would cost too much, the fused backend folds the adapter into a copy of the weight.
  const auto price = [&](const graft::graph& g) {
    return graft::cost_of(g, numbers.sizes_in(g), {graft::dtype::f32}, graft::dtype::f32);
  };
  const bool copies = graft::folds(graft::cpu_target, derived::forward, derived::folded,
                                   numbers.sizes_in(derived::forward), graft::dtype::f32);
  const graft::cost cheaper = price(copies ? graft::graph(derived::folded) : graft::graph(derived::forward));
  const char* way_back = fused.unmergeable             ? "yes"
                         : fused.saved_for_unmerge > 0 ? "with one saved tensor"
                                                       : "no: keep the base";
  std::printf("%-22s %-10s %8.1e %14lld %8d %7s  %s\n", Layer::adapter::name, Layer::kind::name, error,
              cheaper.flops / tokens, fused.kernels, fused.mergeable ? "yes" : "no", way_back);
  return error < 1e-5;
}

int main() {
  std::printf("%-22s %-10s %8s %14s %8s %7s  %s\n", "adapter", "on", "error", "flops / token", "kernels", "merges",
              "unmerges");
  int wrong = 0;
  graft::for_each_adapter([&]<class Adapter>(graft::adapter_type<Adapter>) {
    using sample = typename Adapter::sample;
    if constexpr (graft::is_main_form<Adapter>()) {  // one adapter type per name
      if constexpr (graft::lists(Adapter::kinds, "linear"))
        wrong += agrees<graft::linear<256, 192, float, sample, graft::bias::yes>>() ? 0 : 1;
      else if constexpr (graft::lists(Adapter::kinds, "embedding"))
        wrong += agrees<graft::embedding<256, 192, float, sample>>() ? 0 : 1;
      else if constexpr (graft::lists(Adapter::kinds, "conv2d"))
        wrong += agrees<graft::conv2d<96, 64, 3, float, sample>>() ? 0 : 1;
      else if constexpr (graft::allows(graft::bias_rule<Adapter>(), true))
        wrong += agrees<graft::layer_norm<192, float, sample>>() ? 0 : 1;
      else
        wrong += agrees<graft::rms_norm<192, float, sample>>() ? 0 : 1;
    }
  });
  return wrong == 0 ? 0 : 1;
}
