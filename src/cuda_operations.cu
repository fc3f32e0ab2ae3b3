// SPDX-License-Identifier: Apache-2.0
// Part of graft::cuda_compiled: a kernel for every operation, see graft/run/cuda_compiled.cuh.
#include <graft/backend/cuda/evaluate.cuh>

namespace graft::cuda {
template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                        const operands<float>&, float*);
}  // namespace graft::cuda
