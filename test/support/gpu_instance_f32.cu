// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/evaluate.cuh>
#include <graft/backend/cuda/linear.cuh>

namespace graft::cuda {

template struct evaluator<float>;
template status run_linear<float>(cudaStream_t, const linear_problem&, const linear_choice&, const linear_operands&);

}  // namespace graft::cuda
