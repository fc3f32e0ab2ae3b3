// SPDX-License-Identifier: Apache-2.0
// The engines for whole models on a GPU, bf16 and f32, for files that nvcc compiles. A program that links
// graft::gpu_compiled takes the model templates from that library (extern template) instead of compiling them.
#pragma once
#include <graft/backend/gpu/runtime/engine_models.cuh>
#include <graft/run/gpu_grouped.cuh>
#if defined(GRAFT_GPU_COMPILED)
#include <graft/model/generate.h>
#include <graft/model/multi_lora_training.h>
#include <graft/model/trainer.h>
#include <graft/run/gpu_compiled.cuh>

extern template class graft::block_programs<graft::gpu::engine<float>>;
extern template class graft::bound_block<graft::gpu::engine<float>>;
extern template class graft::block_stack<graft::gpu::engine<float>>;
extern template class graft::causal_lm<graft::gpu::engine<float>>;
extern template class graft::generator<graft::gpu::engine<float>>;
extern template class graft::training_run<graft::gpu::engine<float>>;
extern template class graft::multi_lora_training_run<graft::gpu::engine<float>>;
extern template class graft::trainer<graft::gpu::engine<float>>;
extern template class graft::block_programs<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::bound_block<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::block_stack<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::causal_lm<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::generator<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::training_run<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::multi_lora_training_run<graft::gpu::engine<__nv_bfloat16>>;
extern template class graft::trainer<graft::gpu::engine<__nv_bfloat16>>;
#endif
