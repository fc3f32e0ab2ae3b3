// SPDX-License-Identifier: Apache-2.0
// The operations of a layer type: what a program that names it compiles. Those of the backward pass, and of training with
// few rows, are asked for apart, since many programs never call them.
#pragma once
#include <graft/derive/layers.h>
#include <graft/graph/op_set.h>

namespace graft {

template <class Layer> struct type_operations {
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

}  // namespace graft
