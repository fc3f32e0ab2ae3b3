// SPDX-License-Identifier: Apache-2.0
#include <graft/backend/cuda/attention_kernels.cuh>
#include <graft/backend/cuda/mixed_linear.cuh>

template graft::cuda::linear_kernels graft::cuda::all_kernels<__nv_bfloat16>();
template graft::cuda::mixed_kernels graft::cuda::all_mixed_kernels<__nv_bfloat16>();
template graft::cuda::attention_kernels graft::cuda::all_attention_kernels<__nv_bfloat16>();
