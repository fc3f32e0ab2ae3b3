// SPDX-License-Identifier: Apache-2.0
// Deprecated name of graft/gpu.h and of its namespace for one release; include graft/gpu.h and use graft::gpu instead. A
// compiler warns where graft::cuda is named, which it could not do for a namespace alias.
#pragma once
#include <graft/gpu.h>

namespace graft {
namespace [[deprecated("use graft/gpu.h and graft::gpu")]] cuda {
using namespace gpu;
}
}  // namespace graft
