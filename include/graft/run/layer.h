// SPDX-License-Identifier: Apache-2.0
// From a layer type to its graphs' addresses.
#pragma once
#include <graft/run/executor.h>

namespace graft {

template <class Kind, class Adapter, bool Bias> layer_graphs graphs_of() {
  using d = derived<Kind, Adapter, Bias>;
  return {&d::literal, &d::literal_backward, &d::forward, &d::backward, &d::merge,
          &derived<Kind, none, Bias>::forward, &d::unmerge_weight, &d::unmerge_bias};
}

}  // namespace graft
