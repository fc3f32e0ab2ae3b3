// SPDX-License-Identifier: Apache-2.0
// The GPU executors are compiled once per element type, in the files beside this one: some hundred kernels each.
#pragma once
#include <graft/run/cuda_together.cuh>

extern template class graft::cuda::executor<float>;
extern template class graft::cuda::executor<__nv_bfloat16>;
extern template class graft::cuda::executor<__half>;
extern template graft::status graft::cuda::run_stream<__nv_bfloat16>(cudaStream_t, const graft::cuda::stream_choice&,
                                                                     graft::cuda::stream_args,
                                                                     const graft::cuda::matrix&, int,
                                                                     const graft::cuda::stream_layer*, int, bool);
