// SPDX-License-Identifier: Apache-2.0
// Part of graft::cuda_compiled: the bodies of all functions that headers declare with GRAFT_CUDA_LIBRARY, and the
// kernels that products and gradients of every type share.
#define GRAFT_DEFINES_CUDA_LIBRARY
#include <graft/run/cuda_compiled.cuh>

namespace graft::cuda {
template status each<add_numbers>(cudaStream_t, long long, const add_numbers&, const char*);
template status each<apply_post>(cudaStream_t, long long, const apply_post&, const char*);
template status each<fill_vector<float>>(cudaStream_t, long long, const fill_vector<float>&, const char*);
}  // namespace graft::cuda
