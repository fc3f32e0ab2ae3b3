// SPDX-License-Identifier: Apache-2.0
// Extern templates of the kernels, engines and executors in the library graft::gpu_compiled, so that a program does not
// compile some hundred kernels itself. Linking that target sets GRAFT_GPU_COMPILED, and graft/gpu.h then includes this.
#pragma once
#include <graft/backend/gpu/runtime/engine.cuh>
#include <graft/backend/gpu/runtime/engine_models.cuh>
#include <graft/run/gpu_layer.cuh>

namespace graft::gpu {

extern template status evaluate_node<every_op>(cudaStream_t, const graph&, const size_values&, id, tensor<float>,
                                               const operands<float>&, float*);
extern template status multiply<float>(const on_stream&, const products<float>&, float*);
extern template status each<unary<float>>(cudaStream_t, long long, const unary<float>&, const char*);
extern template status each<fill_functor<float>>(cudaStream_t, long long, const fill_functor<float>&, const char*);
extern template status each<add_numbers>(cudaStream_t, long long, const add_numbers&, const char*);
extern template status each<apply_epilogue>(cudaStream_t, long long, const apply_epilogue&, const char*);
extern template status each<fill_vector<float>>(cudaStream_t, long long, const fill_vector<float>&, const char*);
extern template launchers all_launchers<float>();
extern template launchers all_launchers<__nv_bfloat16>();
extern template launchers all_launchers<__half>();
extern template gemm_kernel_set all_wgrads<float>();
extern template multi_lora_kernels all_multi_lora_skinny<float>();
extern template gemm_kernel_set all_wgrads<__nv_bfloat16>();
extern template gemm_kernel_set all_gemms<__nv_bfloat16, 128>();
extern template gemm_kernel_set all_gemms<__nv_bfloat16, 256>();
extern template gemm_kernel_set all_skinny<__nv_bfloat16, 8>();
extern template gemm_kernel_set all_skinny<__nv_bfloat16, 16>();
extern template gemm_kernel_set all_skinny<__nv_bfloat16, 64>();
extern template quantized_kernels all_quantized_kernels<__nv_bfloat16, 8>();
extern template quantized_kernels all_quantized_kernels<__nv_bfloat16, 16>();
extern template multi_lora_kernels all_multi_lora_gemms<__nv_bfloat16>();
extern template multi_lora_kernels all_multi_lora_skinny<__nv_bfloat16>();
extern template gemm_kernel_set all_wgrads<__half>();
extern template gemm_kernel_set all_gemms<__half, 128>();
extern template gemm_kernel_set all_gemms<__half, 256>();
extern template gemm_kernel_set all_skinny<__half, 8>();
extern template gemm_kernel_set all_skinny<__half, 16>();
extern template gemm_kernel_set all_skinny<__half, 64>();
extern template quantized_kernels all_quantized_kernels<__half, 8>();
extern template quantized_kernels all_quantized_kernels<__half, 16>();
extern template multi_lora_kernels all_multi_lora_gemms<__half>();
extern template multi_lora_kernels all_multi_lora_skinny<__half>();
extern template attention_kernels all_attention_kernels<__nv_bfloat16>();
extern template mma_attention_kernels all_mma_attention_kernels<__nv_bfloat16>();
extern template class multi_lora_gemm<float>;
extern template class multi_lora_gemm<__nv_bfloat16>;
extern template class multi_lora_gemm<__half>;
extern template class program<float>;
extern template class execution<float>;
extern template class program<__nv_bfloat16>;
extern template class execution<__nv_bfloat16>;
extern template class program<__half>;
extern template class execution<__half>;
extern template class token_sampler<float>;
extern template class token_sampler<__nv_bfloat16>;
extern template class token_sampler<__half>;
extern template struct engine<float>;
extern template struct engine<__nv_bfloat16>;
extern template struct engine<__half>;

}  // namespace graft::gpu

extern template class graft::executor<graft::gpu::engine<float>>;
extern template class graft::executor<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::executor<graft::gpu::engine<__half>>;
