// SPDX-License-Identifier: Apache-2.0
// The engine for whole models on the CPU. A program that links graft::models_compiled takes the model templates from
// that library (extern template) instead of compiling them.
#pragma once
#include <graft/backend/cpu/runtime/engine_models.h>
#if defined(GRAFT_MODELS_COMPILED)
#include <graft/model/generate.h>
#include <graft/model/multi_lora_training.h>
#include <graft/model/trainer.h>
#include <graft/run/cpu_compiled.h>

extern template class graft::block_programs<graft::cpu::engine<float>>;
extern template class graft::bound_block<graft::cpu::engine<float>>;
extern template class graft::block_stack<graft::cpu::engine<float>>;
extern template class graft::causal_lm<graft::cpu::engine<float>>;
extern template class graft::generator<graft::cpu::engine<float>>;
extern template class graft::training_run<graft::cpu::engine<float>>;
extern template class graft::multi_lora_training_run<graft::cpu::engine<float>>;
extern template class graft::trainer<graft::cpu::engine<float>>;
#endif
