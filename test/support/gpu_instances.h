// SPDX-License-Identifier: Apache-2.0
// The kernels are compiled once per element type, in the files beside this one: some hundred of them each. What is declared
// here is all that refers to one; the executors around it are cheap to compile again.
#pragma once
#include <graft/run/cuda_together.cuh>

namespace graft::cuda {

extern template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                               const operands<float>&, float*);
extern template linear_kernels all_kernels<float>();
extern template linear_kernels all_kernels<__nv_bfloat16>();
extern template linear_kernels all_kernels<__half>();
extern template mixed_kernels all_mixed_kernels<float>();
extern template mixed_kernels all_mixed_kernels<__nv_bfloat16>();
extern template mixed_kernels all_mixed_kernels<__half>();
extern template attention_kernels all_attention_kernels<__nv_bfloat16>();

}  // namespace graft::cuda
