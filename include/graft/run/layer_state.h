// SPDX-License-Identifier: Apache-2.0
// The tensors, scalars and sizes of one adapted layer, by name, and how they become the leaves of a graph.
#pragma once
#include <graft/adapter/none.h>
#include <graft/derive/derived.h>
#include <graft/run/bind.h>

namespace graft {

// The graphs of a layer, by address: everything below works for any layer without being compiled again for each.
struct layer_graphs {
  graph literal = empty_graph, literal_backward = empty_graph;
  graph forward = empty_graph, folded = empty_graph, backward = empty_graph;
  graph base_forward = empty_graph, base_backward = empty_graph;  // without the adapter
  graph merge = empty_graph, unmerge_weight = empty_graph, unmerge_bias = empty_graph;
  unmerge_facts weight_facts{}, bias_facts{};
  bool exists() const { return forward.size > 0; }
};

template <class Kind, class Adapter, bool Bias> layer_graphs graphs_of() {
  using d = derived<Kind, Adapter, Bias>;
  using base = derived<Kind, none, Bias>;
  return {.literal = d::literal,
          .literal_backward = d::literal_backward,
          .forward = d::forward,
          .folded = d::folded,
          .backward = d::backward,
          .base_forward = base::forward,
          .base_backward = base::backward,
          .merge = d::merge,
          .unmerge_weight = d::unmerge_weight,
          .unmerge_bias = d::unmerge_bias,
          .weight_facts = d::weight_facts,
          .bias_facts = d::bias_facts};
}

// The leaves of one graph with the sizes that follow from them. Data-time leaves are still empty.
struct bound_leaves {
  size_values sizes;
  std::vector<view> leaf;
};

class layer_state {
 public:
  explicit layer_state(const layer_graphs& graphs) : graphs_(graphs) {}

  // A tensor the layer's owner keeps alive. The shape is checked now; nothing changes when it does not fit.
  status set(const char* name, const view& v) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    const bool tensor = i >= 0 && (g[i].what == op::base || g[i].what == op::frozen || g[i].what == op::param);
    if (!tensor) return fail("this layer has no tensor '", name, "'; it has ", leaf_list());
    if (v.data == nullptr || v.count() == 0) return fail("tensor '", name, "' has no data");
    for (int k = 0; k < v.rank; ++k)
      if (v.size[k] < 1) return fail("tensor '", name, "' has shape ", shape_of(v), ", expected sizes of at least 1");
    if (!computes_in(v.type))
      return fail("tensor '", name, "' is stored as ", name_of(v.type), ", expected f32, f64, bf16 or f16");
    tensor_map trial = tensors_;
    trial.insert_or_assign(name, v);
    size_values s;
    if (status fits = solve(g, trial, s); !fits) return fits;
    tensors_ = std::move(trial);
    return ok;
  }
  status set(const char* name, double value) {
    const graph& g = graph_with(name);
    const id i = g.find(name);
    if (i < 0 || g[i].what != op::scalar) return fail("this layer has no scalar '", name, "'; it has ", leaf_list());
    scalars_.insert_or_assign(name, value);
    return ok;
  }
  status size(const char* name, long long value) {
    if (graphs_.literal.sizes.find(name) < 0) return fail("this layer has no size '", name, "'");
    if (value < 0) return fail("size '", name, "' is ", value, ", expected a number that is not negative");
    size_map trial = given_;
    trial.insert_or_assign(name, value);
    std::swap(trial, given_);
    size_values s;
    status fits = solve(graphs_.literal, tensors_, s);
    if (!fits) std::swap(trial, given_);
    return fits;
  }

  // Everything a graph needs that does not come with a call; an error names the first leaf that is missing.
  result<bound_leaves> bind(const graph& g) const {
    bound_leaves b;
    if (status solved = solve(g, tensors_, b.sizes); !solved) return solved.failure();
    b.leaf.resize(static_cast<std::size_t>(g.size));
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (v.what == op::scalar) {
        const auto found = scalars_.find(v.name);
        if (found == scalars_.end()) return fail("scalar '", v.name, "' is not set");
        b.leaf[static_cast<std::size_t>(k)] = view_of(&found->second, 1);
      } else if (v.what == op::base || v.what == op::frozen || v.what == op::param) {
        const auto found = tensors_.find(v.name);
        if (found == tensors_.end())
          return fail("tensor '", v.name, "' is not set, expected ", expected_shape(g, static_cast<id>(k), b.sizes));
        b.leaf[static_cast<std::size_t>(k)] = found->second;
      }
    }
    return b;
  }
  // Adds the tensors of one call.
  static status bind_data(const graph& g, const tensor_map& data, bound_leaves& b) {
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (v.what != op::input && v.what != op::ids && v.what != op::kept) continue;
      const auto found = data.find(v.name);
      if (found == data.end()) return fail("tensor '", v.name, "' is missing in this call");
      if (found->second.data == nullptr && found->second.count() != 0) return fail("tensor '", v.name, "' has no data");
      const dtype type = found->second.type;
      if (v.what == op::ids ? type != dtype::i64 : !computes_in(type))
        return fail("tensor '", v.name, "' is stored as ", name_of(type), ", expected ",
                    v.what == op::ids ? "i64" : "f32, f64, bf16 or f16");
      if (status fits = fit(g, static_cast<id>(k), found->second, b.sizes); !fits) return fits;
      b.leaf[static_cast<std::size_t>(k)] = found->second;
    }
    for (int i = 0; i < g.sizes.count; ++i) {
      const bool named = g.sizes.e[i].what == size_entry::kind::name;
      if (g.sizes.value(entry_dim(i), b.sizes) != unknown) continue;
      if (named) return fail("size '", g.sizes.e[i].name, "' follows from no tensor; give it by name");
      text t;
      print(t, g.sizes, entry_dim(i));
      return fail("the size ", t, " does not exist for these tensors: a window is larger than what it slides over");
    }
    if (const requirement* r = first_violated(g, b.sizes)) return error{describe(g, *r, b.sizes)};
    return ok;
  }

  const layer_graphs& graphs() const { return graphs_; }

 private:
  status solve(const graph& g, const tensor_map& tensors, size_values& s) const {
    for (const auto& [name, value] : given_)
      if (const int at = g.sizes.find(name.c_str()); at >= 0) s.v[at] = value;
    for (int pass = 0; pass < 2; ++pass)  // a second pass sees the names that the first one found
      for (int k = 0; k < g.size; ++k) {
        const auto found = is_leaf(g.n[k].what) ? tensors.find(g.n[k].name) : tensors.end();
        if (found == tensors.end()) continue;
        if (status fits = fit(g, static_cast<id>(k), found->second, s); !fits) return fits;
      }
    if (const requirement* r = first_violated(g, s)) return error{describe(g, *r, s)};
    return ok;
  }
  const graph& graph_with(const char* name) const {
    for (const graph* g : {&graphs_.literal, &graphs_.merge})
      if (g->find(name) >= 0) return *g;
    return graphs_.base_forward;  // a base tensor that the adapter replaces
  }
  text leaf_list() const {
    text t;
    for (int k = 0; k < graphs_.literal.size; ++k) {
      const node& v = graphs_.literal.n[k];
      const bool listed = v.what == op::base || v.what == op::frozen || v.what == op::param || v.what == op::scalar;
      if (listed) t << (t.empty() ? "" : ", ") << v.name;
    }
    return t;
  }

  layer_graphs graphs_;
  tensor_map tensors_;
  std::map<std::string, double, std::less<>> scalars_;
  size_map given_;
};

}  // namespace graft
