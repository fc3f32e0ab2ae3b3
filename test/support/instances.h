// SPDX-License-Identifier: Apache-2.0
// For tests that look inside the CPU's engine: its parts are in the library that the tests link.
#pragma once
#include <graft/backend/cpu/engine_plan.h>

extern template struct graft::cpu::evaluator<float>;
extern template struct graft::cpu::evaluator<double>;
extern template class graft::cpu::bound_plan<float>;
extern template class graft::cpu::bound_plan<double>;
