// SPDX-License-Identifier: Apache-2.0
// The tensors, scalars and sizes of one adapted layer, by name, and how they become the leaves of a graph.
#pragma once
#include <graft/derive/derived.h>
#include <graft/run/bind.h>

namespace graft {

// The graphs of a layer, by address: everything below works for any layer without being compiled again for each.
struct layer_graphs {
  const builder* literal = nullptr;
  const builder* literal_backward = nullptr;
  const builder* forward = nullptr;
  const builder* backward = nullptr;
  const builder* merge = nullptr;
  const builder* base_forward = nullptr;   // without the adapter
  const unmerging* unmerge_weight = nullptr;
  const unmerging* unmerge_bias = nullptr;
};

class layer_state {
 public:
  explicit layer_state(const layer_graphs& graphs) : graphs_(graphs) {}

  // A tensor the layer's owner keeps alive. The shape is checked now; nothing changes when it does not fit.
  status set(const char* name, const view& v) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    if (i < 0 || g[i].what == op::input || g[i].what == op::ids)
      return fail("this layer has no tensor '", name, "'; it has ", leaf_list());
    if (v.type == dtype::nf4 || v.type == dtype::int8 || v.type == dtype::i64)
      return fail("tensor '", name, "' is stored as ", name_of(v.type), "; the CPU reads f32, f64 and bf16");
    tensor_map trial = tensors_;
    trial.insert_or_assign(name, v);
    size_values s;
    if (status fits = solve(g, trial, s); !fits) return fits;
    tensors_ = std::move(trial);
    return ok;
  }
  status set(const char* name, double value) {
    for (const graph* g : {static_cast<const graph*>(graphs_.literal), static_cast<const graph*>(graphs_.merge)})
      if (const id i = g->find(name); i >= 0 && (*g)[i].what == op::scalar) {
        scalars_.insert_or_assign(name, value);
        return ok;
      }
    return fail("this layer has no scalar '", name, "'; it has ", leaf_list());
  }
  status size(const char* name, long long value) {
    if (graphs_.literal->sizes.find(name) < 0) return fail("this layer has no size '", name, "'");
    if (value < 0) return fail("size '", name, "' is ", value, ", expected a number that is not negative");
    given_.insert_or_assign(name, value);
    return ok;
  }
  void forget(const char* name) { tensors_.erase(name); }

  // Sizes and leaves for one graph; an error names the first leaf that is missing or does not fit.
  status resolve(const graph& g, size_values& s, std::vector<view>& leaves, const tensor_map& data) const {
    tensor_map all = tensors_;
    for (const auto& [name, v] : data) all.insert_or_assign(name, v);
    if (status solved = solve(g, all, s); !solved) return solved;
    leaves.assign(static_cast<std::size_t>(g.size), view{});
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (!is_leaf(v.what) || v.what == op::eye || v.what == op::zero || v.what == op::constant) continue;
      view& to = leaves[static_cast<std::size_t>(k)];
      if (v.what == op::scalar) {
        const auto found = scalars_.find(v.name);
        if (found == scalars_.end()) return fail("scalar '", v.name, "' is not set");
        to = view_of(&found->second, 1);
        continue;
      }
      const auto found = all.find(v.name);
      if (found == all.end()) return fail("tensor '", v.name, "' is not set, expected ", expected_shape(g, static_cast<id>(k), s));
      to = found->second;
    }
    for (int i = 0; i < g.sizes.count; ++i)
      if (g.sizes.e[i].what == size_entry::kind::name && s.v[i] == unknown)
        return fail("size '", g.sizes.e[i].name, "' follows from no tensor; give it by name");
    return ok;
  }

  const layer_graphs& graphs() const { return graphs_; }
  const tensor_map& tensors() const { return tensors_; }

 private:
  status solve(const graph& g, const tensor_map& tensors, size_values& s) const {
    for (const auto& [name, value] : given_)
      if (const int at = g.sizes.find(name.c_str()); at >= 0) s.v[at] = value;
    for (int pass = 0; pass < 2; ++pass)
      for (int k = 0; k < g.size; ++k) {
        if (!is_leaf(g.n[k].what)) continue;
        const auto found = tensors.find(g.n[k].name);
        if (found == tensors.end()) continue;
        if (status fits = fit(g, static_cast<id>(k), found->second, s); !fits) return fits;
      }
    if (const requirement* r = first_violated(g, s)) return error{describe(g, *r, s)};
    return ok;
  }
  const graph& graph_with(const char* name) const {
    for (const builder* g : {graphs_.literal, graphs_.merge})
      if (g->find(name) >= 0) return *g;
    return *graphs_.base_forward;   // a base tensor that the adapter replaces
  }
  text leaf_list() const {
    text t;
    for (const graph* g : {static_cast<const graph*>(graphs_.literal), static_cast<const graph*>(graphs_.merge)})
      for (int k = 0; k < g->size; ++k) {
        const node& v = g->n[k];
        const bool listed = v.what == op::base || v.what == op::frozen || v.what == op::param || v.what == op::scalar;
        if (listed && !contains(t.c_str(), v.name)) t << (t.empty() ? "" : ", ") << v.name;
      }
    return t;
  }

  layer_graphs graphs_;
  tensor_map tensors_;
  std::map<std::string, double, std::less<>> scalars_;
  size_map given_;
};

}  // namespace graft
