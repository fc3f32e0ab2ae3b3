// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/mixed_linear.cuh>

template graft::cuda::linear_kernels graft::cuda::all_kernels<__half>();
template graft::cuda::mixed_kernels graft::cuda::all_mixed_kernels<__half>();
