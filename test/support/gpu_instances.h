// SPDX-License-Identifier: Apache-2.0
// The kernels are compiled once per element type, in the files beside this one: some hundred of them each. What is declared
// here is all that refers to one; the executors around it are cheap to compile again.
#pragma once
#include <graft/run/cuda_together.cuh>

namespace graft::cuda {

extern template struct evaluator<float>;
extern template status run_linear<float>(cudaStream_t, const linear_problem&, const linear_choice&,
                                         const linear_operands&);
extern template status run_linear<__nv_bfloat16>(cudaStream_t, const linear_problem&, const linear_choice&,
                                                 const linear_operands&);
extern template status run_linear<__half>(cudaStream_t, const linear_problem&, const linear_choice&,
                                          const linear_operands&);
extern template status run_stream<__nv_bfloat16>(cudaStream_t, const stream_choice&, stream_args, const matrix&, int,
                                                 const stream_layer*, int, bool);
extern template const void* detail::gemm_of<__nv_bfloat16, 256>(int, bool);
extern template const void* detail::gemm_of<__half, 256>(int, bool);

}  // namespace graft::cuda
