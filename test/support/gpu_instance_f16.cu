// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/linear_kernels.cuh>

template graft::cuda::linear_kernels graft::cuda::all_kernels<__half>();
