// SPDX-License-Identifier: Apache-2.0
// A layer type on the GPU: its compile-time facts and its executor in one object. Instantiating it captures the graph,
// and is an error where the layer is wrong.
#pragma once
#include <graft/plan/compile.h>
#include <graft/plan/explain.h>
#include <graft/run/cuda_together.cuh>

namespace graft::cuda {

// The type that CUDA computes with for a storage type of ours.
template <class Element> struct device_type { using type = float; };
template <> struct device_type<bf16> { using type = __nv_bfloat16; };
template <> struct device_type<f16> { using type = __half; };

template <class Layer, class... Options>
class layer : public compile<Layer, Options...>,
              public executor<typename device_type<typename compile<Layer, Options...>::layer::element>::type> {
  using checked = typename compile<Layer, Options...>::layer;  // sound even where Layer is not: no second error
  using base = executor<typename device_type<typename checked::element>::type>;

 public:
  explicit layer(backend how = backend::fused)
      : base(graphs_of<typename checked::kind, typename checked::adapter, checked::has_bias>(), how) {
    const graph& g = derived_of<checked>::literal;
    const size_values fixed = static_sizes<checked>(g);
    for (int i = 0; i < g.sizes.count; ++i)  // numbers of a checked type: setting them cannot fail
      if (g.sizes.e[i].what == size_entry::kind::name && fixed.v[i] != unknown)
        static_cast<void>(this->size(g.sizes.e[i].name, fixed.v[i]));
  }
  // The layer in words, and what this GPU launches for it. A line goes to a sink, any callable that takes a text.
  template <class Sink> void explain(Sink&& line, long long tokens) const {
    graft::explain<checked>(line, tokens);
    text t;
    t << "  on this GPU: " << this->describe(tokens).c_str();
    line(t);
  }
};

}  // namespace graft::cuda
