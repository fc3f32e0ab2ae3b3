// SPDX-License-Identifier: Apache-2.0
#include <graft/run/cuda_together.cuh>

template class graft::cuda::executor<__nv_bfloat16>;
template graft::status graft::cuda::run_stream<__nv_bfloat16>(cudaStream_t, const graft::cuda::stream_choice&,
                                                              graft::cuda::stream_args, const graft::cuda::matrix&, int,
                                                              const graft::cuda::stream_layer*, int, bool);
