// SPDX-License-Identifier: Apache-2.0
// Instantiates the CPU engine and executor for float; part of graft::cpu_compiled (graft/run/cpu_compiled.h).
#include <graft/backend/cpu/runtime/engine_models.h>
#include <graft/run/cpu_compiled.h>
#include <graft/run/executor_impl.h>

template graft::cpu::operations<float> graft::cpu::every_operation<float>();
template class graft::cpu::program<float>;
template class graft::cpu::row_products<float>;
template struct graft::cpu::engine<float>;
template class graft::executor<graft::cpu::engine<float>>;
