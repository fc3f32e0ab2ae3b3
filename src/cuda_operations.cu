// SPDX-License-Identifier: Apache-2.0
// Part of graft::cuda_compiled: a kernel for every operation, with those that are launched elsewhere as well. See
// graft/run/cuda_compiled.cuh.
#include <graft/backend/cuda/evaluate.cuh>

namespace graft::cuda {
template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                        const operands<float>&, float*);
template status multiply<float>(const on_stream&, const products<float>&, float*);
template status each<unary<float>>(cudaStream_t, long long, const unary<float>&, const char*);
template status each<filled<float>>(cudaStream_t, long long, const filled<float>&, const char*);
}  // namespace graft::cuda
