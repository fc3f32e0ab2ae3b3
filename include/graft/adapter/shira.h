// SPDX-License-Identifier: Apache-2.0
// SHiRA: some entries of the weight are trained, as many as LoRA of rank r would have (Bhardwaj et al. 2024, arXiv
// 2406.13175).
//     W' = W + scatter_elements(v, index)        index: rows and columns of r (out + in) elements
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

// Adds the numbers `values` to the entries of the weight that `index` lists.
template <int Entries> constexpr ex with_entries(scope p, ex W, leaf_name values, leaf_name index) {
  auto n = p.size("num_indices", Entries, 4096);
  return W + scatter_elements(p.param(values, n), p.index(index, n), W.rows(), W.cols());
}

template <int Entries = dyn> struct shira {
  static constexpr const char *name = "SHiRA", *method = "shira", *kinds = "linear";
  using sample = shira<4096>;
  static constexpr ex weight(scope p, ex W) { return with_entries<Entries>(p, W, "shira_weight", "shira_indices"); }
};

using shira_forms = adapter_list<shira<>>;

}  // namespace graft
