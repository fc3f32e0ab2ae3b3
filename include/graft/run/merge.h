// SPDX-License-Identifier: Apache-2.0
// merge and unmerge on any engine: merge writes W' and b' from the merge graph, unmerge recovers the base tensor from
// them. Values that unmerging needs (DoRA's norm) are outputs of the merge and stay in memory between the two.
#pragma once
#include <graft/run/layer_state.h>

namespace graft {

template <class Engine> class merger {
 public:
  using queue = typename Engine::queue;

  // `version` is that of the parameters: unmerge() refuses to run with another one.
  status merge(queue& q, const layer_state& state, unsigned long long version, const mutable_view& weight,
               const mutable_view& bias) {
    const graph& g = state.graphs().merge;
    result<bound_leaves> b = state.bind(g);
    if (!b) return b.failure();
    std::vector<mutable_view> to(static_cast<std::size_t>(g.outs));
    if (weight.data == nullptr && bias.data == nullptr)
      return fail("merge() was given no memory; give it an output for 'weight'");
    for (const auto& [name, into] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}}) {
      if (into->data == nullptr) continue;
      const int k = g.find_output(name);
      if (k < 0) return fail("the adapter leaves '", name, "' as it is");
      if (status s = check_output(g, k, b->sizes, name, *into); !s) return s;
      for (id i = 0; i < g.size; ++i)
        if (status s = check_no_overlap(name, *into, g.name(i), b->leaf[i], is_named(g, i, name)); !s) return s;
      to[static_cast<std::size_t>(k)] = *into;
    }
    if (weight.data != nullptr && bias.data != nullptr)
      if (overlap(footprint_of(weight), footprint_of(bias)))
        return fail("the outputs for 'weight' and 'bias' overlap; give each memory of its own");
    std::vector<typename Engine::memory> saved;
    leaf_views saved_views;
    for (int k = 0; k < g.outs; ++k) {
      if (!same_text(g.out[k].name, "saved")) continue;
      const node& v = g[g.out[k].at];
      mutable_view into{nullptr, Engine::compute_type, {}, 4};
      for (int i = 0; i < 4; ++i) into.size[i] = g.sizes.value(v.d[i], b->sizes);
      auto memory = Engine::allocate(q, into.count() * bits_of(Engine::compute_type) / 8);
      if (!memory) return memory.failure();
      into.data = memory->data();
      saved.push_back(std::move(*memory));
      to[static_cast<std::size_t>(k)] = into;
      saved_views.push({into.data, into.type, {into.size[0], into.size[1], into.size[2], into.size[3]}, 4});
    }
    if (status s = Engine::evaluate(q, g, b->sizes, b->leaf, to); !s) return s;
    saved_ = std::move(saved), saved_views_ = std::move(saved_views);
    merged_version_ = version;
    return ok;
  }
  // Recovers the base tensor `what`, "weight" or "bias", from the merged one.
  status unmerge(queue& q, const layer_state& state, unsigned long long version, const char* what, const view& merged,
                 const mutable_view& original) {
    if (what == nullptr) return fail("a name is null; name weight or bias");
    const bool is_bias = same_text(what, "bias");
    if (!is_bias && !same_text(what, "weight")) return fail("'", what, "' cannot be unmerged, expected weight or bias");
    const layer_graphs& graphs = state.graphs();
    const graph& g = is_bias ? graphs.unmerge_bias : graphs.unmerge_weight;
    if (!(is_bias ? graphs.unmerging.bias : graphs.unmerging.weight))
      return fail("the formula cannot be solved for '", what, "'; keep a copy of the base tensor");
    if (!is_bias && static_cast<int>(saved_.size()) < graphs.unmerging.saved)
      return fail("merge() first: unmerging needs a value that it saves");
    if (merged_version_ != 0 && merged_version_ != version)
      return fail(
          "unmerge() belongs to another merge(): since then a parameter was changed or another adapter activated");
    result<bound_leaves> b = state.bind(g);
    if (!b) return b.failure();
    for (id i = 0; i < g.size; ++i) {
      if (!layer_state::is_call_input(g[i])) continue;
      const view& from = g[i].what == op::saved ? saved_views_[g[i].k[0].v] : merged;
      if (status s = layer_state::bind_leaf(g, i, from, b->sizes); !s) return s;
      b->leaf[i] = from;
    }
    if (status s = layer_state::check_sizes(g, b->sizes); !s) return s;
    if (status s = check_output(g, 0, b->sizes, what, original); !s) return s;
    if (status s = check_no_overlap(what, original, "merged", merged, true); !s) return s;
    return Engine::evaluate(q, g, b->sizes, b->leaf, {original});
  }

 private:
  static status check_output(const graph& g, int output, const size_values& s, const char* name,
                             const mutable_view& to) {
    const long long n = element_count(g, g.out[output].at, s);
    if (to.data == nullptr) return fail("'", name, "' has no data; give it memory for ", n, " elements");
    if (!is_valid(to)) return invalid_view("", name, to);
    if (to.count() != n) return fail("'", name, "' has ", to.count(), " elements, expected ", n);
    if (!is_floating(to.type)) return fail("'", name, "' is ", name_of(to.type), ", expected f32, f64, bf16 or f16");
    return ok;
  }
  static bool is_named(const graph& g, id i, const char* name) { return same_text(g.name(i).c_str(), name); }
  // Outputs do not overlap tensors that are read, except for exactly the tensor that they replace.
  template <class Name>
  static status check_no_overlap(const char* name, const mutable_view& to, const Name& other, const view& read,
                                 bool replaces) {
    if (read.data == nullptr || !overlap(footprint_of(to), footprint_of(read))) return ok;
    if (replaces && same_elements(to, read)) return ok;
    return fail("'", name, "' overlaps tensor '", other,
                "'; give it memory of its own, or exactly the tensor it replaces");
  }
  std::vector<typename Engine::memory> saved_;
  leaf_views saved_views_;
  unsigned long long merged_version_ = 0;  // version of the parameters at the last merge(); 0: none
};

}  // namespace graft
