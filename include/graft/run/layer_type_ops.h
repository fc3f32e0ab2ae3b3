// SPDX-License-Identifier: Apache-2.0
// What a layer type states about itself at compile time: the operations that a program which names the type compiles,
// and the sizes that it fixes.
#pragma once
#include <graft/derive/layers.h>
#include <graft/graph/op_set.h>

namespace graft {

// Operations of the backward pass, and of training with few rows, are separate sets: many programs need neither.
template <class Layer> struct layer_type_ops {
  using graphs = derived_of<Layer>;
  using plain = derived<typename Layer::kind, none, Layer::has_bias>;
  static constexpr op_set forward = ops_of(graphs::literal) | ops_of(graphs::forward) | ops_of(graphs::folded) |
                                    ops_of(graphs::merge) | ops_of(graphs::unmerge_weight) |
                                    ops_of(graphs::unmerge_bias) | ops_of(plain::forward);
  static constexpr op_set both =
      forward | ops_of(graphs::backward) | ops_of(graphs::literal_backward) | ops_of(plain::backward);
  static constexpr op_set training =
      both | ops_of(capture_forward_by_rows(graphs::value)) | ops_of(capture_backward_by_rows(graphs::value));
};

// Sets the sizes that a layer type fixes on its executor. The type is checked, so setting them cannot fail.
template <class Layer, class Executor> void set_static_sizes(Executor& to) {
  const graph& g = derived_of<Layer>::literal;
  const size_values fixed = static_sizes<Layer>(g);
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && fixed.v[e.index] != unknown)
      static_cast<void>(to.set_static_size(g.paths().full(e.path, e.name).c_str(), fixed.v[e.index]));
}

}  // namespace graft
