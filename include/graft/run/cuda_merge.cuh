// SPDX-License-Identifier: Apache-2.0
// Merging on the GPU: W' node by node from the merge graph, and the base weight back from it. Both wait for the stream:
// their intermediate values live no longer than the call.
#pragma once
#include <graft/backend/cuda/values.cuh>
#include <graft/run/layer_state.h>

#include <algorithm>

namespace graft::cuda {

class merger {
 public:
  // W' and, where the adapter changes it, b'. What unmerge() will need is kept.
  status merge(cudaStream_t stream, const layer_state& state, const mutable_view& weight, const mutable_view& bias) {
    const graph& g = state.graphs().merge;
    result<bound_leaves> b = state.bind(g);
    if (!b) return b.failure();
    values v(g, b->sizes, b->leaf);
    for (const auto& [name, to] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}}) {
      if (to->data == nullptr) continue;
      const id at = g.result(name);
      if (at < 0) return fail("the adapter leaves '", name, "' as it is");
      if (to->count() != v.elements(at))
        return fail("'", name, "' has ", to->count(), " elements, expected ", v.elements(at));
    }
    if (status s = v.compute(stream, reachable(g)); !s) return s;
    for (const auto& [name, to] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}})
      if (to->data != nullptr)
        if (status s = convert(stream, v[g.result(name)].p, dtype::f32, to->data, to->type, to->count()); !s) return s;
    const unmerge_facts& u = state.graphs().weight_facts;
    kept_.clear();
    for (int k = 0; k < u.kept; ++k) {
      const tensor<float> t = v[u.kept_from[k]];
      kept_.push_back({v.take(u.kept_from[k]), {t.d[0], t.d[1], t.d[2], t.d[3]}});
    }
    return check(cudaStreamSynchronize(stream), "merging");  // the values live until here
  }
  // `what` is "weight" or "bias": the base tensor from the merged one.
  status unmerge(cudaStream_t stream, const layer_state& state, const char* what, const view& merged,
                 const mutable_view& original) {
    const bool is_bias = same_text(what, "bias");
    if (!is_bias && !same_text(what, "weight")) return fail("'", what, "' cannot be unmerged, expected weight or bias");
    const graph& g = is_bias ? state.graphs().unmerge_bias : state.graphs().unmerge_weight;
    const unmerge_facts& u = is_bias ? state.graphs().bias_facts : state.graphs().weight_facts;
    if (!u.possible) return fail("the formula cannot be solved for '", what, "'; keep a copy of the base tensor");
    if (static_cast<int>(kept_.size()) < u.kept) return fail("merge() first: unmerging needs a value that it keeps");
    result<bound_leaves> b = state.bind(g);
    if (!b) return b.failure();
    tensor_map data{{"merged", merged}};
    for (int k = 0; k < u.kept; ++k) {
      const kept_value& from = kept_[static_cast<std::size_t>(k)];
      view v{from.data.data(), dtype::f32, {}, 4};
      std::copy_n(from.size, 4, v.size);
      data.insert_or_assign(kept_names[k], v);
    }
    if (status s = layer_state::bind_data(g, data, *b); !s) return s;
    const id at = g.out[0].at;
    values v(g, b->sizes, b->leaf);
    if (original.count() != v.elements(at))
      return fail("'", what, "' has ", original.count(), " elements, expected ", v.elements(at));
    if (status s = v.compute(stream, reachable(g)); !s) return s;
    if (status s = convert(stream, v[at].p, dtype::f32, original.data, original.type, original.count()); !s) return s;
    return check(cudaStreamSynchronize(stream), "unmerging");
  }

 private:
  struct kept_value {
    buffer data;
    long long size[4];
  };
  std::vector<kept_value> kept_;
};

}  // namespace graft::cuda
