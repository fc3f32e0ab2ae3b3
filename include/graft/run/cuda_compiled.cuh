// SPDX-License-Identifier: Apache-2.0
// Kernels, engines and executors as a program finds them in the library graft::cuda_compiled, instead of compiling some
// hundred kernels itself. Linking that target sets GRAFT_CUDA_COMPILED, and graft/cuda.h then includes this.
#pragma once
#include <graft/backend/cuda/engine_calls.cuh>
#include <graft/backend/cuda/engine_models.cuh>
#include <graft/run/cuda_layer.cuh>

namespace graft::cuda {

extern template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                               const operands<float>&, float*);
extern template status multiply<float>(const on_stream&, const products<float>&, float*);
extern template status each<unary<float>>(cudaStream_t, long long, const unary<float>&, const char*);
extern template status each<filled<float>>(cudaStream_t, long long, const filled<float>&, const char*);
extern template status each<add_numbers>(cudaStream_t, long long, const add_numbers&, const char*);
extern template status each<apply_post>(cudaStream_t, long long, const apply_post&, const char*);
extern template status each<fill_vector<float>>(cudaStream_t, long long, const fill_vector<float>&, const char*);
extern template launchers all_launchers<float>();
extern template launchers all_launchers<__nv_bfloat16>();
extern template launchers all_launchers<__half>();
extern template linear_kernels all_sums<float>();
extern template mixed_kernels all_mixed_streams<float>();
extern template linear_kernels all_sums<__nv_bfloat16>();
extern template linear_kernels all_gemms<__nv_bfloat16, 128>();
extern template linear_kernels all_gemms<__nv_bfloat16, 256>();
extern template linear_kernels all_streams<__nv_bfloat16, 8>();
extern template linear_kernels all_streams<__nv_bfloat16, 16>();
extern template linear_kernels all_streams<__nv_bfloat16, 64>();
extern template code_kernels all_code_kernels<__nv_bfloat16, 8>();
extern template code_kernels all_code_kernels<__nv_bfloat16, 16>();
extern template mixed_kernels all_mixed_gemms<__nv_bfloat16>();
extern template mixed_kernels all_mixed_streams<__nv_bfloat16>();
extern template linear_kernels all_sums<__half>();
extern template linear_kernels all_gemms<__half, 128>();
extern template linear_kernels all_gemms<__half, 256>();
extern template linear_kernels all_streams<__half, 8>();
extern template linear_kernels all_streams<__half, 16>();
extern template linear_kernels all_streams<__half, 64>();
extern template code_kernels all_code_kernels<__half, 8>();
extern template code_kernels all_code_kernels<__half, 16>();
extern template mixed_kernels all_mixed_gemms<__half>();
extern template mixed_kernels all_mixed_streams<__half>();
extern template attention_kernels all_attention_kernels<__nv_bfloat16>();
extern template mma_attention_kernels all_mma_attention_kernels<__nv_bfloat16>();
extern template class mixed_linear<float>;
extern template class mixed_linear<__nv_bfloat16>;
extern template class mixed_linear<__half>;
extern template class bound_plan<float>;
extern template class bound_plan<__nv_bfloat16>;
extern template class bound_plan<__half>;
extern template class token_sampler<float>;
extern template class token_sampler<__nv_bfloat16>;
extern template class token_sampler<__half>;
extern template struct engine<float>;
extern template struct engine<__nv_bfloat16>;
extern template struct engine<__half>;

}  // namespace graft::cuda

extern template class graft::executor<graft::cuda::engine<float>>;
extern template class graft::executor<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::executor<graft::cuda::engine<__half>>;
