// SPDX-License-Identifier: Apache-2.0
// Whole models on the GPU, for files that nvcc compiles: their engines, bf16 and f32. A program that links
// graft::cuda_compiled finds the models in that library instead of compiling them itself.
#pragma once
#include <graft/backend/cuda/engine_models.cuh>
#include <graft/run/cuda_together.cuh>
#if defined(GRAFT_CUDA_COMPILED)
#include <graft/model/generate.h>
#include <graft/model/mixed_training.h>
#include <graft/model/trainer.h>
#include <graft/run/cuda_compiled.cuh>

extern template class graft::block_programs<graft::cuda::engine<float>>;
extern template class graft::bound_block<graft::cuda::engine<float>>;
extern template class graft::block_stack<graft::cuda::engine<float>>;
extern template class graft::causal_lm<graft::cuda::engine<float>>;
extern template class graft::generator<graft::cuda::engine<float>>;
extern template class graft::training_run<graft::cuda::engine<float>>;
extern template class graft::mixed_training_run<graft::cuda::engine<float>>;
extern template class graft::trainer<graft::cuda::engine<float>>;
extern template class graft::block_programs<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::bound_block<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::block_stack<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::causal_lm<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::generator<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::training_run<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::mixed_training_run<graft::cuda::engine<__nv_bfloat16>>;
extern template class graft::trainer<graft::cuda::engine<__nv_bfloat16>>;
#endif
