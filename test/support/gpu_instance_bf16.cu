// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/linear.cuh>

namespace graft::cuda {

template status run_linear<__nv_bfloat16>(cudaStream_t, const linear_problem&, const linear_choice&,
                                          const linear_operands&);
template status run_stream<__nv_bfloat16>(cudaStream_t, const stream_choice&, stream_args, const matrix&, int,
                                          const stream_layer*, int, bool);
template const void* detail::gemm_of<__nv_bfloat16, 256>(int, bool);

}  // namespace graft::cuda
