// SPDX-License-Identifier: Apache-2.0
// Every adapter in a loop. Nothing below knows an adapter: the loop asks the graph of each layer which tensors it has,
// fills them with random numbers, and runs the layer twice. `eager` follows the formula to the letter, one operation
// after the other, and builds W'; `fused` runs the kernels of the derived plan.
#include <cstdio>

#include "random_tensors.h"

using namespace graft;

template <class Layer> bool agrees() {
  using derived = derived_of<Layer>;
  constexpr long long tokens = 32;
  const random_tensors<Layer> numbers(
      {{"tokens", tokens}, {"height", 8}, {"width", 8}, {"num_vectors", 24}, {"vector_length", 16}});

  // Naming these options is already a check: one fused graph, and a gradient for every parameter.
  cpu::layer<Layer, fullgraph, training> fused, eager(mode::eager);
  std::vector<float> y(numbers.outputs()), expected(numbers.outputs());
  for (const status& s : {numbers.bind(fused), fused.forward(numbers.x(), whole(y)),  //
                          numbers.bind(eager), eager.forward(numbers.x(), whole(expected))})
    if (!s) return std::printf("%-22s %s\n", Layer::adapter::name, s.message()), false;
  const double error = relative_error(y, expected);

  // Where the side branch would cost too much, the fused backend keeps a copy of W' instead.
  const auto price = [&](const graph& g) { return cost_of(g, numbers.sizes_in(g), {dtype::f32}, dtype::f32); };
  const bool copies =
      folds(cpu_target, derived::forward, derived::folded, numbers.sizes_in(derived::forward), dtype::f32);
  const cost cheaper = price(copies ? graph(derived::folded) : graph(derived::forward));
  const char* way_back = fused.unmergeable ? "yes" : fused.kept > 0 ? "with one kept tensor" : "no: keep the base";
  std::printf("%-22s %-10s %8.1e %14lld %8d %7s  %s\n", Layer::adapter::name, Layer::kind::name, error,
              cheaper.flops / tokens, fused.kernels, fused.mergeable ? "yes" : "no", way_back);
  return error < 1e-5;
}

int main() {
  std::printf("%-22s %-10s %8s %14s %8s %7s  %s\n", "adapter", "on", "error", "flops / token", "kernels", "merges",
              "unmerges");
  int wrong = 0;
  for_each_adapter([&]<class Adapter>(adapter_type<Adapter>) {
    using sample = typename Adapter::sample;
    if constexpr (is_main_form<Adapter>()) {  // one of each name
      if constexpr (lists(Adapter::kinds, "linear"))
        wrong += agrees<linear<256, 192, float, sample, bias::yes>>() ? 0 : 1;
      else if constexpr (lists(Adapter::kinds, "embedding"))
        wrong += agrees<embedding<256, 192, float, sample>>() ? 0 : 1;
      else if constexpr (lists(Adapter::kinds, "conv2d"))
        wrong += agrees<conv2d<96, 64, 3, float, sample>>() ? 0 : 1;
      else if constexpr (allows(bias_rule<Adapter>(), true))
        wrong += agrees<layer_norm<192, float, sample>>() ? 0 : 1;
      else
        wrong += agrees<rms_norm<192, float, sample>>() ? 0 : 1;
    }
  });
  return wrong == 0 ? 0 : 1;
}
