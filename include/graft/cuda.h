// SPDX-License-Identifier: Apache-2.0
// Deprecated alias of graft/gpu.h and of its namespace for one release; include graft/gpu.h and use graft::gpu instead.
#pragma once
#include <graft/gpu.h>

namespace graft {
namespace cuda = gpu;
}  // namespace graft
