// SPDX-License-Identifier: Apache-2.0
// Compiles the bodies of all functions that headers declare with GRAFT_GPU_LIBRARY, and the kernels that GEMMs and
// gradients of every type share; part of graft::gpu_compiled.
#define GRAFT_DEFINES_GPU_LIBRARY
#include <graft/run/gpu_compiled.cuh>

namespace graft::gpu {
template status each<add_numbers>(cudaStream_t, long long, const add_numbers&, const char*);
template status each<apply_epilogue>(cudaStream_t, long long, const apply_epilogue&, const char*);
template status each<fill_vector<float>>(cudaStream_t, long long, const fill_vector<float>&, const char*);
template status dequantize_parts<void>(cudaStream_t, const quantized_weight&, long long, const element_ptr<float>&,
                                       long long, const used_experts&);
template status gather_parts<void>(cudaStream_t, const gathered_dequantized&);
}  // namespace graft::gpu
