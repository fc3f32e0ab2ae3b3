// SPDX-License-Identifier: Apache-2.0
// A layer type on the CPU: its compile-time facts and its executor in one object. Instantiating it captures the graph,
// and is an error where the layer is wrong.
#pragma once
#include <graft/plan/compile.h>
#include <graft/run/executor.h>

namespace graft::cpu {

template <class Layer, class... Options>
class layer : public compile<Layer, Options...>, public executor<typename compile<Layer, Options...>::real> {
  using checked = typename compile<Layer, Options...>::layer;  // sound even where Layer is not: no second error

 public:
  using real = typename compile<Layer, Options...>::real;
  explicit layer(backend how = backend::fused)
      : executor<real>(graphs_of<typename checked::kind, typename checked::adapter, checked::has_bias>(), how) {
    const graph& g = derived_of<checked>::literal;
    const size_values fixed = static_sizes<checked>(g);
    for (int i = 0; i < g.sizes.count; ++i)  // numbers of a checked type: setting them cannot fail
      if (g.sizes.e[i].what == size_entry::kind::name && fixed.v[i] != unknown)
        static_cast<void>(this->size(g.sizes.e[i].name, fixed.v[i]));
  }
};

}  // namespace graft::cpu
