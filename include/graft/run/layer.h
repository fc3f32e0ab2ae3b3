// SPDX-License-Identifier: Apache-2.0
// A layer type on the CPU: its compile-time facts and its executor in one object. Instantiating it captures the graph,
// and is an error where the layer is wrong.
#pragma once
#include <graft/plan/compile.h>
#include <graft/run/executor.h>

namespace graft::cpu {

template <class Layer, class... Options>
class layer : public compile<Layer, Options...>, public executor<typename storage<typename Layer::element>::compute> {
 public:
  using real = typename storage<typename Layer::element>::compute;
  explicit layer(backend how = backend::fused)
      : executor<real>(graphs_of<typename Layer::kind, typename Layer::adapter, Layer::has_bias>(), how) {
    const graph& g = derived_of<Layer>::literal;
    const size_values fixed = static_sizes<Layer>(g);
    for (int i = 0; i < g.sizes.count; ++i)  // numbers of a checked type: setting them cannot fail
      if (g.sizes.e[i].what == size_entry::kind::name && fixed.v[i] != unknown)
        static_cast<void>(this->size(g.sizes.e[i].name, fixed.v[i]));
  }
};

}  // namespace graft::cpu
