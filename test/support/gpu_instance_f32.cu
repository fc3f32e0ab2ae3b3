// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/evaluate.cuh>
#include <graft/backend/cuda/mixed_linear.cuh>

namespace graft::cuda {

template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                        const operands<float>&, float*);
template linear_kernels all_kernels<float>();
template mixed_kernels all_mixed_kernels<float>();

}  // namespace graft::cuda
