// SPDX-License-Identifier: Apache-2.0
// Instantiates an eager kernel for every operation, and the elementwise kernels that other code launches too; part of
// graft::gpu_compiled (graft/run/gpu_compiled.cuh).
#include <graft/backend/gpu/dispatch/evaluate_node.cuh>

namespace graft::gpu {
template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                        const operands<float>&, float*);
template status multiply<float>(const on_stream&, const products<float>&, float*);
template status each<unary<float>>(cudaStream_t, long long, const unary<float>&, const char*);
template status each<fill_functor<float>>(cudaStream_t, long long, const fill_functor<float>&, const char*);
}  // namespace graft::gpu
