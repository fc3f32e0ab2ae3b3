// SPDX-License-Identifier: Apache-2.0
// BEFT: the bias alone is trained (Huang et al. 2025, arXiv 2509.15974).
//     W' = W,   b' = b + β        a layer without a bias gets one
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

struct beft {
  static constexpr const char *name = "BEFT", *method = "beft", *kinds = "linear";
  using sample = beft;
  static constexpr ex weight(scope, ex W) { return W; }
  static constexpr ex bias(scope p, ex b) { return b + t(p.param("beft_bias", 1, b.rows())); }
};

using beft_forms = adapter_list<beft>;

}  // namespace graft
