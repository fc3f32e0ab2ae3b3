// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/linear.cuh>

namespace graft::cuda {

template status run_linear<__half>(cudaStream_t, const linear_problem&, const linear_choice&, const linear_operands&);
template const void* detail::gemm_of<__half, 256>(int, bool);

}  // namespace graft::cuda
