// SPDX-License-Identifier: Apache-2.0
// SHiRA: some entries of the weight are trained, as many as LoRA of rank r would have (Bhardwaj et al. 2024, arXiv
// 2406.13175).
//     W' = W + place(v, index)        index: rows and columns of r (out + in) places
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Places = dyn> struct shira {
  static constexpr const char *name = "SHiRA", *method = "shira", *kinds = "linear";
  using sample = shira<4096>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("places", Places, 4096);
    return W + place(p.param("shira_weight", n), p.index("shira_indices", n), W.rows(), W.cols());
  }
};

using shira_forms = adapter_list<shira<>>;

}  // namespace graft
