// SPDX-License-Identifier: Apache-2.0
// How a layer runs: by the kernels of its plan, or one operation after the other as the formula is written.
#pragma once

namespace graft {

enum class backend : unsigned char { fused, eager };

}  // namespace graft
