// SPDX-License-Identifier: Apache-2.0
// The sizes that a layer's type states, given to its executor.
#pragma once
#include <graft/derive/layers.h>

namespace graft {

// Numbers of a checked type: setting them cannot fail.
template <class Layer, class Executor> void give_static_sizes(Executor& to) {
  const graph& g = derived_of<Layer>::literal;
  const size_values fixed = static_sizes<Layer>(g);
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && fixed.v[e.index] != unknown)
      static_cast<void>(to.size(g.paths().full(e.path, e.name).c_str(), fixed.v[e.index]));
}

}  // namespace graft
