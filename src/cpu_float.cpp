// SPDX-License-Identifier: Apache-2.0
// Part of graft::cpu_compiled: see graft/run/compiled.h.
#include <graft/backend/cpu/engine_models.h>
#include <graft/run/compiled.h>
#include <graft/run/executor_calls.h>

template graft::cpu::operations<float> graft::cpu::every_operation<float>();
template class graft::cpu::bound_plan<float>;
template class graft::cpu::mixed_products<float>;
template struct graft::cpu::engine<float>;
template class graft::executor<graft::cpu::engine<float>>;
