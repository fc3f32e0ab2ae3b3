// SPDX-License-Identifier: Apache-2.0
// The kind multiply_add compiles for the GPU, in the program and the execution of the library.
#include <graft/run/gpu_compiled.cuh>

namespace graft::gpu {
static_assert(launch_kinds::index_of<multiply_add> == 0);
template class program<float>;
template class execution<float>;
}  // namespace graft::gpu
