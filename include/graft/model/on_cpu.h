// SPDX-License-Identifier: Apache-2.0
// Whole models on the CPU: their engine. A program that links graft::cpu_compiled finds the models in that library instead
// of compiling them itself.
#pragma once
#include <graft/backend/cpu/engine_models.h>
#if defined(GRAFT_CPU_COMPILED)
#include <graft/model/generate.h>
#include <graft/model/mixed_training.h>
#include <graft/model/trainer.h>
#include <graft/run/compiled.h>

extern template class graft::block_programs<graft::cpu::engine<float>>;
extern template class graft::bound_block<graft::cpu::engine<float>>;
extern template class graft::block_stack<graft::cpu::engine<float>>;
extern template class graft::causal_lm<graft::cpu::engine<float>>;
extern template class graft::generator<graft::cpu::engine<float>>;
extern template class graft::training_run<graft::cpu::engine<float>>;
extern template class graft::mixed_training_run<graft::cpu::engine<float>>;
extern template class graft::trainer<graft::cpu::engine<float>>;
#endif
