// SPDX-License-Identifier: Apache-2.0
// Instantiates the CPU engine and executor for double; part of graft::cpu_compiled (graft/run/cpu_compiled.h).
#include <graft/backend/cpu/runtime/engine_models.h>
#include <graft/run/cpu_compiled.h>
#include <graft/run/executor_impl.h>

template graft::cpu::operations<double> graft::cpu::every_operation<double>();
template class graft::cpu::program<double>;
template class graft::cpu::row_products<double>;
template struct graft::cpu::engine<double>;
template class graft::executor<graft::cpu::engine<double>>;
