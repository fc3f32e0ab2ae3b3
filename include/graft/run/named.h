// SPDX-License-Identifier: Apache-2.0
// Tensors, numbers and sizes by name, and how they become the leaves of a graph: the sizes that follow from the shapes, or
// from an adapter's own rule (LoKr's factors), and an error that names what is missing or does not fit.
#pragma once
#include <graft/derive/adaption.h>
#include <graft/run/layer_state.h>

namespace graft {

struct named_values {
  tensor_map tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes;
};

namespace detail {
// Sizes of adapters that follow from those of the layer: each is in the path of the layer, or below it.
inline void size_adapters(const graph& g, const adaptions& rules, size_values& s) {
  for (int k = 0; k < g.sizes.count; ++k) {
    const size_entry& e = g.sizes.e[k];
    if (e.slot < 0 || s.v[e.slot] != unknown) continue;
    for (int path = e.path; path > 0 && s.v[e.slot] == unknown; path = g.paths().e[path].above) {
      std::string layer = g.paths().full(path, "").c_str();
      const id w = g.find((layer + "weight").c_str());
      if (w < 0) continue;
      layer.pop_back();
      const long long out = g.sizes.value(g[w].d[2], s), in = g.sizes.value(g[w].d[3], s);
      for (const adaption& a : rules.at(layer.c_str())) {
        const long long n = a.adapter.adapter_size(e.name, out, in);
        if (n != unknown) s.v[e.slot] = n;
      }
    }
  }
}
}  // namespace detail

// The leaves of a graph that do not come with calls. The numbers of `from` must stay where they are.
inline result<bound_leaves> bind_named(const graph& g, const named_values& from, const adaptions& rules) {
  bound_leaves b;
  b.leaf.resize(static_cast<std::size_t>(g.size));
  for (const auto& [name, n] : from.sizes)
    if (const int slot = g.sizes.find(name.c_str()); slot >= 0) b.sizes.v[slot] = n;
  for (int round = 0; round < 2; ++round) {  // a second round sees the names that the first one found
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      view& to = b.leaf[static_cast<std::size_t>(i)];
      if (v.what == op::scalar) {
        const auto found = from.scalars.find(g.name(i).c_str());
        if (found == from.scalars.end()) return fail("scalar '", g.name(i), "' is not set");
        to = view_of(&found->second, 1);
      } else if (is_named(v.what) && row(v.what).known != stage::data) {
        const auto found = from.tensors.find(g.name(i).c_str());
        if (found == from.tensors.end())
          return fail("tensor '", g.name(i), "' is not set, expected ", expected_shape(g, i, b.sizes));
        if (status s = layer_state::bind_leaf(g, i, found->second, b.sizes); !s) return s.failure();
        to = found->second;
      }
    }
    detail::size_adapters(g, rules, b.sizes);
  }
  if (const requirement* r = first_violated(g, b.sizes)) return error{describe(g, *r, b.sizes)};
  return b;
}

}  // namespace graft
