// SPDX-License-Identifier: Apache-2.0
// How the named values of a block become the leaves of a graph. Sizes follow from shapes, or from an adapter's own rule
// (LoKr's factors); an error names what is missing or does not fit.
#pragma once
#include <graft/derive/block.h>
#include <graft/run/layer_state.h>

namespace graft {

// Gathers the leaves of a graph that do not come with calls. They point to the scalars of `from`, which must not move.
inline result<bound_leaves> bind_named(const graph& g, const named_values& from, const adapter_rules& rules) {
  bound_leaves b;
  b.leaf = leaf_views(g.size);
  for (const auto& [name, n] : from.sizes)
    if (const int index = g.sizes.find(name.c_str()); index >= 0) b.sizes.v[index] = n;
  for (int round = 0; round < 2; ++round) {  // a second round sees the names that the first one found
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      view& to = b.leaf[i];
      if (v.what == op::scalar) {
        const auto found = from.scalars.find(g.name(i).c_str());
        if (found == from.scalars.end()) return fail("scalar '", g.name(i), "' is not set");
        to = view_of(&found->second, 1);
      } else if (is_named(v.what) && traits_of(v.what).known_at != stage::call) {
        const auto found = from.tensors.find(g.name(i).c_str());
        if (found == from.tensors.end())
          return fail("tensor '", g.name(i), "' is not set, expected ", expected_shape(g, i, b.sizes));
        if (status s = layer_state::bind_leaf(g, i, found->second, b.sizes); !s) return s.failure();
        to = found->second;
      }
    }
    infer_adapter_sizes(g, rules, b.sizes);
  }
  if (const requirement* r = first_violated(g, b.sizes)) return error{describe(g, *r, b.sizes)};
  return b;
}

}  // namespace graft
