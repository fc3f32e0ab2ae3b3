// SPDX-License-Identifier: Apache-2.0
// none: the bare base layer, W' = W, which a disabled adapter computes too.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

struct none {
  static constexpr const char *name = "none", *method = "none",
                              *kinds = "linear embedding conv2d layer_norm rms_norm experts";
  using sample = none;
  static constexpr ex weight(scope, ex W) { return W; }
};

}  // namespace graft
