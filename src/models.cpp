// SPDX-License-Identifier: Apache-2.0
// Instantiates whole models on the CPU engine; part of graft::models_compiled (graft/model/on_cpu.h).
#include <graft/model/on_cpu.h>

template class graft::block_programs<graft::cpu::engine<float>>;
template class graft::bound_block<graft::cpu::engine<float>>;
template class graft::block_stack<graft::cpu::engine<float>>;
template class graft::causal_lm<graft::cpu::engine<float>>;
template class graft::generator<graft::cpu::engine<float>>;
template class graft::training_run<graft::cpu::engine<float>>;
template class graft::multi_lora_training_run<graft::cpu::engine<float>>;
template class graft::trainer<graft::cpu::engine<float>>;
