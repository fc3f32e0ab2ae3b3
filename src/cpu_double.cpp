// SPDX-License-Identifier: Apache-2.0
// Part of graft::cpu_compiled: see graft/run/compiled.h.
#include <graft/backend/cpu/engine_models.h>
#include <graft/run/compiled.h>
#include <graft/run/executor_calls.h>

template graft::cpu::operations<double> graft::cpu::every_operation<double>();
template class graft::cpu::bound_plan<double>;
template class graft::cpu::mixed_products<double>;
template struct graft::cpu::engine<double>;
template class graft::executor<graft::cpu::engine<double>>;
